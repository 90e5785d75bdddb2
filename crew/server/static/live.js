/** The connection: the list of runs, the open run, its live events; and what the page says while there is none. */

import * as api from './api.js';
import { $, button, h, icon, copy, toast } from './dom.js';
import { many, oneLine, progressOf } from './format.js';
import { View, combine, merge } from './model.js';
import { form } from './newrun.js';
import { S, emit, request, show, thread } from './state.js';

const LIST_MS = 2000, REFRESH_MS = 400, MOST_WAIT_S = 30;
/** @type {Map<string, import('./model.js').RunData>} */
const known = new Map();
/** @type {any[]} pages after the first, which is read again and again */
let older = [];
/** @type {string | null} */
let nextPage = null;
let loadingMore = false;
let failures = 0, listTimer = 0, refreshTimer = 0, refreshing = false, again = false, lastRefresh = 0, lostAt = 0;
/** @type {AbortController | null} */
let stream = null;
let streamed = '', ticking = 0;

// ---------------------------------------------------------------------------------------------- the list

export async function pollList() {
  clearTimeout(listTimer);
  if (document.hidden) { listTimer = window.setTimeout(pollList, LIST_MS); return; }
  try {
    const page = await api.listRuns();
    connected();
    const fresh = new Set(page.runs.map((/** @type {any} */ r) => r.run_id));
    S.runs = [...page.runs, ...older.filter(r => !fresh.has(r.run_id))];
    if (!older.length) nextPage = page.cursor;
    S.rights = page.rights;
    S.crews = page.crews;
    $('#add').hidden = !S.rights.run;
    emit('runs');
    drawConnection();
    watchOpenRun();
    if (!S.view && !S.runId && !S.conversation) drawEmpty();
    listTimer = window.setTimeout(pollList, LIST_MS);
  } catch (error) {
    disconnected(error);
  }
}

export async function loadMore() {
  if (!nextPage || loadingMore) return;
  loadingMore = true;
  try {
    const page = await api.moreRuns(nextPage);
    older = [...older, ...page.runs];
    nextPage = page.cursor;
    const ids = new Set(S.runs.map(r => r.run_id));
    S.runs = [...S.runs, ...page.runs.filter((/** @type {any} */ r) => !ids.has(r.run_id))];
    emit('runs');
  } finally {
    loadingMore = false;
  }
}

/** A run may go on in another process: the list says that it changed. */
function watchOpenRun() {
  const run = S.view?.run, listed = S.runs.find(r => r.run_id === run?.id);
  if (!run) return;
  if (S.conversation && S.runs.some(r => r.conversation_id === S.conversation && !known.has(r.run_id))) scheduleRefresh();
  if (listed && (listed.updated > run.updated || listed.status !== run.status)) scheduleRefresh();
}

// ---------------------------------------------------------------------------------------------- the connection

function connected() {
  if (failures) { toast('Connected again'); scheduleRefresh(); }
  failures = 0;
  document.body.classList.remove('offline');
  $('#banner').classList.remove('on');
}

/** @param {unknown} error */
function disconnected(error) {
  if (error instanceof api.ApiError && (error.status === 401 || error.status === 403)) return showError('No access', error.message, 'Try again in order to sign in with a token, or open the address that the server printed when it started.');
  if (!failures) lostAt = Date.now();
  failures++;
  const wait = Math.min(MOST_WAIT_S, 2 ** failures), until = Date.now() + wait * 1e3;
  document.body.classList.add('offline');
  const draw = () => {
    if (!failures) return;
    const left = Math.max(0, Math.ceil((until - Date.now()) / 1e3));
    $('#banner').classList.add('on');
    $('#banner').replaceChildren(h('i', { class: 'pulse' }), h('span', { class: 'grow cut' }, `No connection since ${Math.round((Date.now() - lostAt) / 1e3)} s. Runs go on without this page. Next try in ${left} s.`), button('btn', 'Retry now', () => pollList(), 'Retry now'));
  };
  draw();
  const ticks = setInterval(() => { if (!failures || Date.now() > until) clearInterval(ticks); else draw(); }, 1000);
  listTimer = window.setTimeout(pollList, wait * 1e3);
}

function drawConnection() {
  const crews = S.crews.length ? S.crews.map(oneLine).join(', ') : '';
  $('#connection').replaceChildren(S.rights.read_only ? h('span', { class: 'badge plain', title: 'Stored runs: no answers, no cancelling' }, 'read-only') : '', h('span', { class: 'cut' }, S.rights.read_only ? ` ${many(S.runs.length, 'run')}` : crews));
}

// ---------------------------------------------------------------------------------------------- the open run

/** @param {string} id @param {any} [how] */
export async function openRun(id, how = {}) {
  if (id !== S.runId || S.conversation) { S.view = null; S.thread = 0; S.pos = how.keepPos ? S.pos : null; S.span = null; S.zoom = null; S.found = null; S.pause = 0; S.mode = ''; $('#words').value = ''; $('#hits').textContent = ''; }
  S.runId = id;
  S.conversation = '';
  await openView(how);
}

/** @param {string} id @param {any} [how] */
export async function openConversation(id, how = {}) {
  Object.assign(S, { view: null, thread: 0, pos: null, span: null, zoom: null, found: null, runId: '', conversation: id, kind: 'conversations' });
  await openView(how);
}

/** @param {any} how */
async function openView(how) {
  stop();
  ticking ||= window.setInterval(tick, 1000);
  if (!S.view) showLoading();
  emit('runs');
  const run = S.runId, conversation = S.conversation;
  try {
    const view = await readView();
    if (run !== S.runId || conversation !== S.conversation) return;
    hideState();
    show(view, { first: true });
    how.then?.();
    emit('address');
    follow();
  } catch (error) {
    if (run !== S.runId || conversation !== S.conversation) return;
    const text = error instanceof Error ? error.message : String(error), missing = error instanceof api.ApiError && error.status === 404;
    showError(`Can't load ${conversation ? 'conversation ' + conversation : 'run ' + run}`, text, missing ? 'It was erased (crew forget), or this server uses another store.' : '');
  }
}

async function readView() {
  if (!S.conversation) return new View(await readData(S.runId));
  const { runs } = await api.readConversation(S.conversation), turns = [];
  for (const run of runs) {
    const data = known.get(run.run_id), done = data && data.run.updated >= run.updated && data.run.status === run.status;
    turns.push(done ? data : await readData(run.run_id));
  }
  S.runId = '';
  return new View(combine(turns, S.conversation));
}

/** What is new of a run, added to what the page has. @param {string} id */
async function readData(id) {
  const before = known.get(id), part = await api.readRun(id, before?.cursor), data = merge(before ?? null, { ...part, arrived: performance.now() });
  known.delete(id);
  known.set(id, data);
  if (known.size > 40) known.delete(known.keys().next().value ?? '');
  return data;
}

/** Read the open run again soon; many events lead to one reading. */
export function scheduleRefresh() {
  if (refreshing) { again = true; return; }
  if (refreshTimer) return;
  const wait = Math.max(30, REFRESH_MS - (performance.now() - lastRefresh));
  refreshTimer = window.setTimeout(refresh, wait);
}

async function refresh() {
  refreshTimer = 0;
  if (!S.view) return;
  refreshing = true;
  const run = S.runId, conversation = S.conversation, began = performance.now();
  try {
    const view = await readView();
    if (run === S.runId && conversation === S.conversation) {
      if (S.writing && !view.threads.some(t => t.path === S.writing?.path && t.Q[t.Q.length - 1]?.open)) S.writing = null;
      const following = S.n >= thread().Q.length && view.run.status === 'running';
      show(view, { follow: following });
      follow();
    }
  } catch (error) {
    if (!(error instanceof api.ApiError)) disconnected(error);
  }
  refreshing = false;
  // A long transcript takes long to read: then it is read less often.
  lastRefresh = performance.now() + (performance.now() - began);
  if (again) { again = false; scheduleRefresh(); }
}

// ---------------------------------------------------------------------------------------------- live events

/** Follow the events of a run under way; each of them says that there is something new. */
async function follow() {
  const run = S.view?.run;
  if (!run || run.status !== 'running') return stop();
  if (streamed === run.id) return;
  stop();
  const own = stream = new AbortController();
  streamed = run.id;
  try {
    for await (const { kind, data } of api.events(run.id, known.get(run.id)?.cursor ?? null, own.signal)) {
      if (kind === 'text_delta') write(JSON.parse(data)); else if (kind === 'tool_progress') progress(JSON.parse(data)); else scheduleRefresh();
    }
  } catch (error) {
    if (own.signal.aborted) return;
    if (!(error instanceof api.ApiError) && !failures) pollList();
  }
  if (own !== stream) return;
  stop();
  setTimeout(scheduleRefresh, 500); // the stream ended: the run stopped, or the server did
}

/** The time of a run under way, or of one that waits, goes on between its events. */
function tick() {
  const view = S.view;
  if (!view || !(view.run.status === 'running' || view.run.pauses.length) || document.hidden || failures) return;
  view.tick();
  emit('rows');
  emit('time');
}

export function stop() {
  stream?.abort();
  stream = null;
  streamed = '';
}

let writingTimer = 0;
/** A piece of a reply. @param {any} delta */
function write(delta) {
  if (delta.channel === 'restart') S.writing = null;
  if (delta.channel !== 'text') return;
  const before = S.writing;
  S.writing = { path: delta.run_id, text: (before?.path === delta.run_id ? before?.text ?? '' : '') + delta.text };
  drawSoon();
}

/** A running tool reports how far it is; only the newest report of a call is kept. @param {any} event */
function progress(event) {
  const key = `${event.run_id} ${event.key || event.call_id}`;
  S.progress.delete(key);
  S.progress.set(key, progressOf(event.data));
  if (S.progress.size > 200) S.progress.delete(S.progress.keys().next().value ?? '');
  drawSoon();
}

/** Live events come often: the rows are drawn again a few times a second. */
function drawSoon() {
  if (!writingTimer) writingTimer = window.setTimeout(() => { writingTimer = 0; emit('rows'); if (request()?.open) emit('writing'); }, 120);
}

// ---------------------------------------------------------------------------------------------- states of the page

function hideState() {
  $('#state').className = '';
  $('#state').replaceChildren();
  $('#head').hidden = false;
}

function showLoading() {
  const bar = (/** @type {string} */ width, /** @type {string} */ height) => h('div', { class: 'sk', css: { width, height } });
  $('#state').className = 'on load';
  $('#state').replaceChildren(...[0, 1, 2].map(c => h('div', { class: 'skc' }, c === 1 ? [bar('100%', '76px'), bar('100%', '50px'), bar('100%', '420px')] : Array.from({ length: 24 }, (_, i) => bar(38 + (i * 37 + c * 11) % 55 + '%', '12px')))));
}

/** @param {string} heading @param {string} text @param {string} advice */
function showError(heading, text, advice) {
  $('#head').hidden = !S.view;
  $('#state').className = 'on';
  $('#state').replaceChildren(h('div', { class: 'card' }, h('h2', null, oneLine(heading)), h('p', null, oneLine(text)), advice ? h('p', null, advice) : '', h('div', { class: 'acts' }, button('btn prime', 'Try again', () => location.reload(), icon('retry'), 'Try again'))));
}

function drawEmpty() {
  if (S.runs.length || $('#state .empty')) return; // drawn once: it may hold what a person is writing
  const line = (/** @type {string} */ text) => h('div', { class: 'code' }, h('header', null, h('span', { class: 'mono grow' }, text), button('btn flat', 'Copy', () => copy(text), icon('copy'))));
  $('#head').hidden = true;
  $('#state').className = 'on';
  const address = `${location.origin}${api.root}/runs`, call = `curl ${address} -H 'Authorization: Bearer TOKEN' -H 'Content-Type: application/json' -d '{"input": "Hello."}'`;
  $('#state').replaceChildren(h('div', { class: 'card empty' }, h('h2', null, 'No runs yet'), S.rights.run
    ? [h('p', null, 'Runs appear here as they start. Start one now:'), form(), h('p', { class: 'after' }, 'Or by the API, with the token that crew serve printed or was given:'), line(call)]
    : h('p', null, S.rights.read_only ? 'This store has no runs.' : 'Runs of this server appear here as they start.')));
}
