/** Starts the page: connects the modules, reads the address, and keeps it. */

import * as charts from './charts.js';
import * as detail from './detail.js';
import * as dock from './dock.js';
import { $, h, icon } from './dom.js';
import * as header from './header.js';
import * as keyboard from './keyboard.js';
import * as live from './live.js';
import * as matrix from './matrix.js';
import { root } from './api.js';
import * as newrun from './newrun.js';
import * as rail from './rail.js';
import * as requestPane from './request.js';
import { FIXED, S, emit, go, message, on, request, thread } from './state.js';
import * as theme from './theme.js';
import * as timeline from './timeline.js';
import * as whatif from './whatif.js';

// ---------------------------------------------------------------------------------------------- the address

let writing = 0;

/** `/runs/ID#branch/request-12/message-44`; every part may be missing. */
function readAddress() {
  const path = decodeURIComponent(location.pathname.slice(root.length)), run = path.match(/^\/runs\/([^/]+)/), conversation = path.match(/^\/conversations\/([^/]+)/);
  return { run: run?.[1] ?? '', conversation: conversation?.[1] ?? '' };
}

/** Select what the fragment of the address names. @param {string} [fragment] */
function applyFragment(fragment = location.hash) {
  if (!S.view) return;
  clearTimeout(writing); // a selection that was made before does not replace what the reader asks for now
  const change = /** @type {any} */ ({}), parts = decodeURIComponent(fragment.slice(1)).split('/');
  let number = '';
  for (const part of parts) {
    const at = S.view.threads.findIndex(t => t.name === part);
    if (part && at >= 0) change.thread = at;
    if (/^request-\d+$/.test(part)) change.n = +part.slice(8);
    if (/^message-\w+$/.test(part)) number = part.slice(8);
    if (part === 'instructions') change.pos = FIXED;
  }
  go(change, { quiet: true });
  const found = number ? thread().M.find(m => String(m.n) === number) : undefined;
  if (found) go({ pos: found.pos }, { quiet: true, reveal: true });
  if (change.thread === undefined && change.n === undefined && change.pos === undefined && !found) return;
  emit('request', { quiet: true });
  if (found || change.pos === FIXED) emit('message', { reveal: true });
}

function writeAddress() {
  clearTimeout(writing);
  writing = window.setTimeout(() => {
    if (!S.view) return;
    const place = S.conversation ? `/conversations/${encodeURIComponent(S.conversation)}` : `/runs/${encodeURIComponent(S.runId)}`, m = message(), t = thread();
    const parts = [S.thread ? encodeURIComponent(t.name) : '', t.Q.length ? `request-${S.n}` : '', m ? `message-${m.n}` : S.pos === FIXED ? 'instructions' : ''].filter(Boolean).join('/');
    history.replaceState(null, '', `${root}${place}${location.search}#${parts}`);
    document.title = `${S.view.run.crew} ${S.runId.slice(0, 8)} · Crew inspector`;
  }, 200);
}

/** @param {string} id */
function openRun(id) {
  delete document.body.dataset.rail;
  if (document.body.dataset.tab === 'runs') tab('history');
  history.pushState(null, '', `${root}/runs/${encodeURIComponent(id)}${location.search}`);
  live.openRun(id);
}

/** @param {string} id */
function openConversation(id) {
  delete document.body.dataset.rail;
  if (document.body.dataset.tab === 'runs') tab('history');
  history.pushState(null, '', `${root}/conversations/${encodeURIComponent(id)}${location.search}`);
  live.openConversation(id);
}

async function openAddress() {
  const { run, conversation } = readAddress();
  if (conversation) return live.openConversation(conversation, { then: () => applyFragment() });
  if (run) return live.openRun(run, { then: () => applyFragment() });
  await firstRun();
}

/** Without a run in the address: the first one that waits, goes on, or was the last. */
async function firstRun() {
  if (!S.runs.length) return;
  const order = ['paused', 'running'], first = S.runs.find(r => r.status === order[0]) ?? S.runs.find(r => r.status === order[1]) ?? S.runs[0];
  await live.openRun(first.run_id, { then: () => applyFragment() });
}

// ---------------------------------------------------------------------------------------------- tabs of a phone

/** @param {string} name */
function tab(name) {
  document.body.dataset.tab = name;
  delete document.body.dataset.sheet;
  drawTabs();
  emit('layout');
}

function drawTabs() {
  const tabs = [['runs', 'Runs', 'menu'], ['timeline', 'Timeline', 'tree'], ['history', 'History', 'grid'], ['request', 'Messages', 'user']];
  $('#tabs').replaceChildren(...tabs.map(([id, name, sign]) => h('button', { type: 'button', 'aria-current': document.body.dataset.tab === id ? 'page' : null, on: { click: () => tab(id) } }, icon(sign), name, id === 'runs' && S.runs.some(r => r.status === 'paused') ? h('i', { class: 'dot' }) : '')));
}

// ---------------------------------------------------------------------------------------------- start

async function start() {
  theme.start();
  $('#theme').append(icon('theme'));
  $('#theme').addEventListener('click', theme.toggle);
  $('#add').append(icon('add'));
  $('#add').addEventListener('click', newrun.open);
  newrun.start(openRun);
  rail.start({ openRun, openConversation, loadMore: live.loadMore });
  header.start({ whatIf: whatif.open, refresh: live.scheduleRefresh, openConversation, openRun });
  dock.start(live.scheduleRefresh);
  // The order of subscription is the order of drawing: the axis that the others use comes first.
  charts.start();
  matrix.start();
  timeline.start();
  requestPane.start();
  detail.start();
  keyboard.start();
  on('address', writeAddress);
  on('tabs runs', drawTabs);
  on('tab', tab);
  emit('pane');
  drawTabs();
  $('#main').addEventListener('click', (/** @type {any} */ e) => { if (!e.target.closest('#menu')) delete document.body.dataset.rail; });
  let resizing = 0;
  new ResizeObserver(() => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(() => { if (S.view) emit('layout'); }); }).observe($('#plots'));
  addEventListener('hashchange', e => { applyFragment(new URL(e.newURL).hash); emit('address'); });
  addEventListener('popstate', () => { const { run, conversation } = readAddress(); if (run !== S.runId || conversation !== S.conversation) openAddress(); });
  document.addEventListener('visibilitychange', () => { if (!document.hidden) live.pollList(); });
  await live.pollList();
  await openAddress();
  on('runs', () => { if (!S.view && !S.runId && !S.conversation) firstRun(); });
  requestAnimationFrame(() => document.body.classList.add('ready'));
}

start();

export { request };
