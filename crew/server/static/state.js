/**
 * What the page shows: the open run, the selected request and message, and the modes of the panes.
 * Modules subscribe to a topic and draw themselves; `go` changes the selection and tells them.
 */

import { Thread, View } from './model.js';

/**
 * Topics: `view` new data or another run or thread, `request` another request, `message` another message,
 * `rows` the timeline's rows, `runs` the rail, `theme` the colours, `layout` the size.
 * @type {Map<string, ((how: any) => void)[]>}
 */
const listeners = new Map();

/** @param {string} topics @param {(how: any) => void} listener */
export function on(topics, listener) {
  for (const topic of topics.split(' ')) listeners.set(topic, [...(listeners.get(topic) ?? []), listener]);
}

/** @param {string} topic @param {any} [how] */
export function emit(topic, how = {}) {
  for (const listener of listeners.get(topic) ?? []) listener(how);
}

export const S = {
  /** @type {View | null} */ view: null,
  /** @type {string} */ runId: '',
  /** @type {string} the conversation that is shown as a whole */ conversation: '',
  thread: 0, n: 1,
  /** @type {number | null} the position of the selected message */ pos: null,
  /** @type {number | null} the selected row of the timeline */ span: null,
  fold: true, /** @type {Set<any>} */ open: new Set(), /** @type {Map<string, Set<number>>} */ closed: new Map(),
  scale: 0, fit: 'visible', pane: 'timeline', kind: 'runs', find: '', pause: 0, mode: '', lit: 0,
  /** @type {[number, number] | null} the requests in view, if not all */ zoom: null,
  /** @type {any[]} */ runs: [], rights: { run: false, approve: false, read_only: true }, /** @type {string[]} */ crews: [],
  /** @type {Map<string, { text: string, part: number | null }>} the newest progress of running calls, by path and key */ progress: new Map(),
  /** @type {Record<string, number[]> | null} positions that a search found, by path */ found: null,
  /** @type {{ path: string, text: string } | null} the reply that is being written */ writing: null,
};

/** @returns {Thread} */
export const thread = () => /** @type {View} */ (S.view).threads[S.thread];
export const request = () => S.view ? thread().Q[S.n - 1] : undefined;
export const message = () => S.view && S.pos != null ? thread().at(S.pos) : undefined;

/** The position that stands for instructions and tools, which come before the messages. */
export const FIXED = -1;

/** Whether the service has the crew of the open run: only then can the run be answered, resumed or cancelled here. */
export const hasCrew = () => !!S.view && /** @type {string[]} */ (S.crews).includes(S.view.run.crew);

/** The last selected request is followed while the run goes on. */
export const isFollowing = () => !!S.view && S.n >= thread().Q.length;

/**
 * Select a thread, request or message. `reveal` scrolls to the message, `fromTree` leaves the timeline as it is,
 * `keep` leaves the list of messages where it is, `quiet` does not change the address.
 * @param {{ thread?: number, n?: number, pos?: number | null, span?: number | null }} change @param {any} [how]
 */
export function go(change, how = {}) {
  if (!S.view) return;
  const before = { thread: S.thread, n: S.n, pos: S.pos };
  if (change.span !== undefined) S.span = change.span;
  if (change.thread !== undefined) S.thread = Math.max(0, Math.min(S.view.threads.length - 1, change.thread));
  const moved = S.thread !== before.thread, last = thread().Q.length;
  S.n = Math.max(1, Math.min(last, change.n ?? (moved ? last : S.n)));
  if (change.pos !== undefined) S.pos = change.pos;
  else if (moved) S.pos = null;
  if (moved) { S.open = new Set(); S.zoom = null; emit('view', how); }
  else if (S.n !== before.n) emit('request', how);
  if (moved || S.pos !== before.pos || S.n !== before.n || how.reveal) emit('message', how);
  if (!how.quiet) emit('address');
}

/** Show new data of the open run; a selection that still exists stays. @param {View} view @param {any} [how] */
export function show(view, how = {}) {
  const follow = isFollowing(), first = !S.view || how.first;
  S.view = view;
  S.thread = Math.min(S.thread, view.threads.length - 1);
  if (S.thread < 0) S.thread = 0;
  const last = view.threads.length ? thread().Q.length : 0;
  if (first || (follow && S.pos == null)) S.n = last;
  S.n = Math.max(1, Math.min(last, S.n));
  emit('view', { ...how, keep: !first });
  emit('message', { keep: !first });
}

/** The collapsed spans of the open run; branches begin collapsed. */
export function closedSpans() {
  const key = S.conversation || S.runId;
  let closed = S.closed.get(key);
  if (!closed) S.closed.set(key, closed = new Set());
  const seen = /** @type {any} */ (closed).seen ??= new Set();
  for (const span of S.view?.spans ?? []) {
    if (seen.has(span.i)) continue;
    seen.add(span.i);
    if (span.k === 'branch') closed.add(span.i);
  }
  return closed;
}
