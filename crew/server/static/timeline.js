/** The timeline: agents, requests, tool calls and branches as a tree, with their times. */

import { $, button, h, icon, segment } from './dom.js';
import { clock, duration, int, many, oneLine, percent, plainArguments, short, visible } from './format.js';
import { Rows } from './rows.js';
import { S, closedSpans, emit, go, on, thread } from './state.js';

/** @typedef {import('./model.js').Span} Span */

const POINTS = new Set(['prune', 'mask', 'cut', 'warn', 'held', 'handoff']);
/** What a pause asks for, by its reason. */
const WANTED = { approval: 'approve', question: 'answer', input: 'answer', consent: 'consent', in_doubt: 'in doubt' };
/** The colour of an answer. */
const OUTCOMES = { approved: 'good', refused: 'bad', skipped: 'bad' };
/** @param {Span} s */
const progressOf = s => s.k === 'tool' && s.e == null ? S.progress.get(`${threadOf(s)?.path} ${s.key}`) : undefined;
let domain = [0, 1];

/** The rows in view: a collapsed span shows its children in one lane. */
function rowsOf() {
  const view = S.view, out = /** @type {{ key: number, s: Span, d: number }[]} */ ([]);
  if (!view || !view.spans.length) return out;
  const shut = closedSpans();
  const walk = (/** @type {number} */ i, /** @type {number} */ depth) => {
    for (const child of view.kids[i]) {
      out.push({ key: child, s: view.spans[child], d: depth });
      if (!shut.has(child)) walk(child, depth + 1);
    }
  };
  walk(0, 0);
  return out;
}

/** @param {Span} s */
const threadOf = s => S.view?.threads[s.t];
/** @param {Span} s */
const requestOf = s => s.r ? threadOf(s)?.Q[s.r - 1] : undefined;
/** @param {Span} s */
const isSelected = s => s.k === 'chat' && S.span == null ? s.r === S.n && s.t === S.thread : s.i === S.span;

/** @param {Span} s @param {HTMLElement} lane @param {boolean} whole draws the children too */
function bars(s, lane, whole) {
  const view = S.view, [from, to] = domain, x = (/** @type {number} */ t) => (t - from) / (to - from) * 100;
  if (!view) return;
  const put = (/** @type {number} */ start, /** @type {number} */ end, /** @type {string} */ cls) => {
    if (end < from || start > to) return;
    const left = Math.max(0, x(start));
    lane.append(h('i', { class: cls, css: { left: left + '%', width: Math.max(0, Math.min(100, x(end)) - left) + '%' } }));
  };
  if (s.k === 'prune' || s.k === 'mask' || s.k === 'cut') return put(s.s, s.s, 'mark');
  if (s.k === 'held') return put(s.s, s.e ?? to, 'held');
  if (view.kids[s.i].length && s.k !== 'chat') {
    put(s.s, view.end(s), 'agent');
    if (whole) for (const child of view.kids[s.i]) bars(view.spans[child], lane, true);
    return;
  }
  const cls = s.bad ? 'bad' : ['tool', 'handoff', 'retry', 'guard'].includes(s.k) ? 'tool' : s.k;
  put(s.s, view.end(s), s.e == null ? cls + ' live' : cls);
}

/** @param {Span} s */
function words(s) {
  const view = /** @type {import('./model.js').View} */ (S.view), fine = (/** @type {string} */ text) => h('span', { class: 'fine cut' }, text);
  const cut = (/** @type {string} */ text) => h('span', { class: 'cut' }, text);
  const requests = () => view.kids[s.i].flatMap(c => view.spans[c].k === 'agent' ? view.kids[c] : [c]).filter(c => view.spans[c].k === 'chat').length;
  switch (s.k) {
    case 'turn': return [icon('chat'), h('b', null, s.name), fine(oneLine(s.d))];
    case 'agent': return [h('b', { class: 'cut' }, oneLine(s.name)), fine(many(requests(), 'request'))];
    case 'parallel': return [icon('fork'), h('b', null, oneLine(s.name)), fine(many(view.kids[s.i].length, 'branch', 'branches'))];
    case 'branch': return [icon(s.outcome === 'completed' ? 'check' : s.outcome ? 'x' : 'fork'), h('b', { class: 'cut' }, oneLine(s.name)), fine(`${requests()} req`)];
    case 'chat': return [h('span', { class: 'num' }, s.r ?? '·'), ...chatWords(s, fine, cut)];
    case 'tool': return [icon(s.bad ? 'failed' : 'tool'), h('span', null, oneLine(s.name)), ...toolWords(s, fine)];
    case 'handoff': return [icon('hand'), h('span', { class: 'cut' }, s.d ? 'route to ' : 'hand off to ', h('b', null, oneLine(s.name)))];
    case 'prune': return [icon('prune'), cut(`pruned ${s.d}`)];
    case 'mask': return [icon('mask'), cut(`masked ${s.d}`)];
    case 'cut': return [icon('cut'), cut(`cut ${s.d}`)];
    case 'compact': return [icon(s.bad ? 'failed' : 'summary'), cut(s.bad ? `no summary: ${oneLine(s.d)}` : `summary of ${many(s.covers ?? 0, 'message')}`)];
    case 'retry': return [icon('retry'), cut(oneLine(s.name))];
    case 'held': return [icon(s.why === 'in_doubt' ? 'doubt' : s.why === 'approval' ? 'paused' : 'ask'), h('b', { class: 'cut' }, oneLine(s.name)), s.e == null ? h('span', { class: 'badge' }, WANTED[s.why ?? ''] ?? 'approve') : s.answer ? h('span', { class: `badge plain ${OUTCOMES[s.answer] ?? ''}` }, s.answer) : '', s.d ? fine(oneLine(s.d)) : ''];
    case 'guard': return [icon(s.bad ? 'failed' : 'guard'), h('b', { class: 'cut' }, oneLine(s.name)), h('span', { class: 'badge plain' }, s.outcome === 'held' ? 'asks' : s.outcome), fine([s.on, s.d || s.wrote].filter(Boolean).map(oneLine).join(': '))];
    default: return [icon('failed'), cut(oneLine(s.name))];
  }
}

/** The arguments of a call; while it runs, the newest progress that it reported. @param {Span} s @param {(text: string) => any} fine */
function toolWords(s, fine) {
  const now = progressOf(s);
  if (s.d) return [fine(oneLine(s.d))];
  if (!now) return [fine(plainArguments(s.args))];
  return [now.part == null ? '' : h('span', { class: 'progress', role: 'progressbar', 'aria-valuenow': Math.round(now.part * 100), 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-label': oneLine(s.name) }, h('i', { css: { width: now.part * 100 + '%' } })),
    now.part == null ? '' : h('span', { class: 'fine part' }, percent(now.part)), fine(now.text)];
}

/** @param {Span} s @param {(text: string) => any} fine @param {(text: string) => any} cut */
function chatWords(s, fine, cut) {
  const q = requestOf(s), t = threadOf(s), reply = q && t?.at(q.reply);
  if (reply?.text) return [cut(oneLine(reply.text))];
  if (reply) return [fine(reply.calls?.length ? 'calls ' + reply.calls.map(c => c.name).join(', ') : 'an empty reply')];
  if (q?.failed) return [fine(oneLine(q.failed))];
  if (S.writing && S.writing.path === t?.path) return [cut(oneLine(S.writing.text.slice(-160)))];
  return [fine(q && !q.open ? 'reply not accepted' : 'asking…')];
}

/** Everything that a row shows. @param {{ key: number, s: Span, d: number }} item */
function signature({ s, d }) {
  const view = S.view, shut = closedSpans().has(s.i), live = s.e == null;
  return [S.runId, S.conversation, s.i, d, s.e, s.name, s.d, s.answer, s.m, progressOf(s)?.text, progressOf(s)?.part, shut, isSelected(s), view?.kids[s.i].length, live && view?.now, live && s.k === 'held' && Math.floor(view?.sinceUpdate() ?? 0), live && S.writing?.text.length, ...domain].join();
}

/** @type {Rows<{ key: number, s: Span, d: number }>} */
const tree = new Rows($('#tree'), signature, drawRow);

/** @param {any} node @param {{ s: Span, d: number }} item */
function drawRow(node, { s, d }) {
  const view = S.view;
  if (!view) return;
  const shut = closedSpans().has(s.i), kids = view.kids[s.i].length, q = s.k === 'chat' ? requestOf(s) : undefined;
  node.className = `row span k-${s.k}${s.bad ? ' is-bad' : ''}${s.k === 'held' && s.e != null ? ' is-over' : ''}`;
  node.id = 'span-' + s.i;
  node.setAttribute('role', 'treeitem');
  node.setAttribute('aria-level', d + 1);
  node.setAttribute('aria-selected', String(isSelected(s)));
  node.style.setProperty('--pad', 4 + Math.max(0, d - 1) * 14 + 'px');
  if (kids) node.setAttribute('aria-expanded', String(!shut)); else node.removeAttribute('aria-expanded');
  const text = words(s), lane = h('span', { class: 'lane' });
  if (text[0].matches?.('.i')) text[0] = h('span', { class: 'g' }, text[0]);
  bars(s, lane, shut);
  laneTime(s, lane);
  const wide = !q && !s.tok, title = [s.name, s.d, s.k === 'held' ? '' : s.why, s.args, s.wrote].filter(Boolean).map(x => visible(String(x))).join(' · ').slice(0, 600);
  node.replaceChildren(
    kids ? button('tw', shut ? 'Expand' : 'Collapse', e => { e.stopPropagation(); toggle(s.i); }, icon('chev')) : '',
    h('span', { class: 'lab' + (wide ? ' wide2' : ''), css: { 'padding-left': 20 + Math.max(0, d - 1) * 14 + 'px' }, title }, ...text),
    wide ? '' : q ? tokensBar(q, view.peak) : h('span', { class: 'micro tok' }, s.tok ? short(s.tok) : ''), lane);
}

/** @param {any} q @param {number} peak */
const tokensBar = (q, peak) => !q.billed ? h('span', { class: 'micro', title: `about ${int(q.in)} tokens, ${q.open ? 'waiting for the reply' : 'no reply'}` }, h('i', { class: 'waits', css: { width: q.in / peak * 42 + 'px' } })) : h('span', { class: 'micro', title: `${int(q.front)} cached or unchanged + ${int(q.in - q.front)} fresh tokens` },
  h('i', { css: { width: q.front / peak * 42 + 'px' } }), h('i', { css: { width: (q.in - q.front) / peak * 42 + 'px' } }));

/** @param {Span} s @param {HTMLElement} lane */
function laneTime(s, lane) {
  const view = S.view, [from, to] = domain, x = (/** @type {number} */ t) => (t - from) / (to - from) * 100;
  if (!view) return;
  const end = view.end(s), long = end - s.s;
  if (s.k === 'held' && s.e == null) lane.append(h('em', { class: 'waits', css: { right: 0 } }, duration(view.sinceUpdate())));
  if (POINTS.has(s.k) || end < from || s.s > to) return;
  if (x(end) < 62) lane.append(h('em', { css: { left: Math.max(0, x(end)) + '%' } }, duration(long)));
  else if (x(s.s) > 22) lane.append(h('em', { css: { right: Math.min(100, 100 - Math.max(0, x(s.s))) + '%' } }, duration(long)));
}

tree.before = () => {
  if (!tree.items.length || !S.view) return;
  const view = S.view, [first, end] = tree.span, seen = tree.items.slice(first, end).map(x => x.s);
  const leaves = seen.filter(s => !view.kids[s.i].length || s.k === 'chat' || closedSpans().has(s.i));
  let next = S.fit === 'all' || !leaves.length ? [0, view.now * 1.04] : [Math.min(...leaves.map(s => s.s)), Math.max(...leaves.map(s => view.end(s)))];
  next = [next[0], Math.max(next[1], next[0] + 0.05) + (next[1] - next[0]) * 0.04];
  if (next[0] === domain[0] && next[1] === domain[1]) return;
  domain = next;
  drawAxis();
};

function drawAxis() {
  const view = S.view, [from, to] = domain, all = view?.now ?? 1, out = [];
  if (!view) return;
  const step = [0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600].find(s => (to - from) / s <= 3) ?? 7200;
  for (let t = Math.ceil(from / step) * step; t < to; t += step) {
    const x = `calc(var(--lab) + 58px + (100% - var(--lab) - 58px) * ${(t - from) / (to - from)})`;
    out.push(h('i', { css: { left: x } }), h('span', { css: { left: x } }, step < 1 ? duration(t) : clock(t)));
  }
  $('#axis').replaceChildren(...out);
  const at = (/** @type {number} */ t) => Math.max(0, Math.min(100, t / all * 100));
  const marks = view.spans.filter(s => s.k === 'prune' || s.k === 'mask'), every = Math.ceil(marks.length / 120);
  const top = view.kids[0] ?? [], agents = top.length > 80 ? [] : top;
  $('#ov').replaceChildren(
    ...agents.map(i => view.spans[i]).map(s => h('span', { css: { left: at(s.s) + '%', width: Math.max(0.4, at(view.end(s)) - at(s.s) - 0.3) + '%' } }, oneLine(s.name))),
    ...marks.filter((_, i) => i % every === 0).map(s => h('em', { css: { left: at(s.s) + '%' } })),
    h('i', { css: { left: at(from) + '%', width: Math.max(1, at(Math.min(to, all)) - at(from)) + '%' } }));
}

function draw() {
  tree.set(rowsOf());
}

/** @param {number} id */
export function toggle(id) {
  const closed = closedSpans();
  if (closed.has(id)) closed.delete(id); else closed.add(id);
  draw();
}

export function toggleAll() {
  const view = S.view, closed = closedSpans();
  if (!view) return;
  const groups = view.spans.filter(s => s.i && view.kids[s.i].length).map(s => s.i), shut = groups.some(i => !closed.has(i));
  closed.clear();
  if (shut) for (const i of groups) closed.add(i);
  $('#foldall').textContent = shut ? 'Expand' : 'Collapse';
  draw();
}

/** Scroll to the selected request, or to its collapsed branch. */
function reveal() {
  tree.measure();
  let at = tree.items.findIndex(x => x.s.k === 'chat' && x.s.r === S.n && x.s.t === S.thread);
  if (at < 0) at = tree.items.findIndex(x => x.s.k === 'branch' && x.s.t === S.thread);
  if (at < 0) {
    const span = S.view?.spans.find(s => s.k === 'chat' && s.r === S.n && s.t === S.thread);
    for (let up = span?.p ?? -1; up > 0 && at < 0; up = S.view?.spans[up].p ?? -1) at = tree.items.findIndex(x => x.s.i === up);
  }
  if (at >= 0) tree.reveal(at);
}

/** Select what a row of the timeline shows. @param {Span} s */
export function pick(s) {
  const t = threadOf(s);
  S.span = s.i;
  if (!t) return draw();
  const next = (/** @type {number} */ at) => t.Q.find(q => q.at >= at - 0.05)?.n ?? t.Q.length;
  if (s.k === 'chat' && s.r) return go({ thread: s.t, n: s.r, pos: requestOf(s)?.reply ?? null, span: s.i }, { fromTree: true, reveal: true });
  if (['prune', 'mask', 'cut', 'compact'].includes(s.k)) return go({ thread: s.t, n: next(s.s), span: s.i, ...(s.m != null ? { pos: s.m } : {}) }, { fromTree: true, reveal: true });
  if (s.m != null) return go({ thread: s.t, n: next(s.e ?? s.s), pos: s.m, span: s.i }, { fromTree: true, reveal: true });
  if (s.k === 'held') emit('pause', s.key);
  draw();
}

/** @param {number} by */
export function step(by) {
  const at = tree.items.findIndex(x => isSelected(x.s)), next = tree.items[Math.max(0, Math.min(tree.items.length - 1, at + by))];
  if (!next) return;
  pick(next.s);
  S.span = next.s.i;
  draw();
  tree.reveal(tree.items.findIndex(x => x.key === next.key));
}

/** Fold or unfold the selected row. @returns {boolean} whether it has children */
export function toggleSelected() {
  if (S.span == null || !S.view?.kids[S.span]?.length) return false;
  toggle(S.span);
  return true;
}

function drawFit() {
  segment($('#fit'), [['visible', 'in view', 'The time axis spans the rows in view'], ['all', 'whole run', 'The time axis spans the whole run']], S.fit, fit => { S.fit = fit; drawFit(); draw(); });
}

export function start() {
  drawFit();
  $('#foldall').addEventListener('click', toggleAll);
  $('#tree').addEventListener('click', (/** @type {Event} */ e) => {
    const item = tree.at(e);
    if (!item) return;
    S.pane = 'timeline';
    emit('pane');
    const s = item.s;
    if (['agent', 'parallel', 'turn'].includes(s.k)) { S.span = s.i; toggle(s.i); }
    else if (s.k === 'branch') { S.span = s.i; toggle(s.i); go({ thread: s.t }, { fromTree: true }); }
    else pick(s);
  });
  $('#ov').addEventListener('click', (/** @type {MouseEvent} */ e) => {
    const box = $('#ov').getBoundingClientRect(), at = (e.clientX - box.left) / box.width * (S.view?.now ?? 0);
    const Q = S.view ? thread().Q : [], hit = Q.find(q => (q.end ?? Infinity) >= at) ?? Q[Q.length - 1];
    if (hit) go({ n: hit.n, span: null });
  });
  on('request', how => { if (!how.fromTree) S.span = null; draw(); if (!how.fromTree) reveal(); });
  on('view', how => { draw(); if (!how.keep && !how.fromTree) reveal(); else if (how.follow) tree.reveal(tree.items.length - 1); drawAxis(); });
  on('rows layout', () => { tree.measure(); draw(); });
}
