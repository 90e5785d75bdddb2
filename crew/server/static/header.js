/** The header of a run: its status, its actions, and its figures. */

import * as api from './api.js';
import { $, STATUS_WORD, button, copy, h, icon, statusIcon, toast } from './dom.js';
import { duration, int, many, oneLine, percent, short, usd, visible } from './format.js';
import { S, hasCrew, on } from './state.js';

let actions = { whatIf: () => {}, refresh: () => {}, openConversation: (/** @type {string} */ _id) => {}, openRun: (/** @type {string} */ _id) => {} };
let sure = '', drawn = '';

/** @param {typeof actions} given */
export function start(given) {
  actions = given;
}

/** @param {string} name @param {any} value @param {string} [small] @param {any} [extra] @param {string} [title] */
const fact = (name, value, small, extra, title) =>
  h('div', { title }, h('dt', null, name), h('dd', null, value, small ? h('small', null, ' ' + small) : null, extra));

function draw() {
  const view = S.view;
  if (!view) return;
  const run = view.run, t = run.totals, turnsListed = S.runs.filter(r => r.conversation_id === run.conversation).length;
  const signature = JSON.stringify([run, S.rights, S.crews, S.conversation, sure, turnsListed, view.priced]);
  if (signature === drawn) return drawDuration(); // a button that is drawn again would lose the focus
  drawn = signature;
  const top = h('div', { class: 'top' },
    button('btn flat', 'Runs', () => document.body.toggleAttribute('data-rail'), icon('menu')),
    h('span', { class: 'chip ' + run.status }, statusIcon(run.status), STATUS_WORD[run.status] ?? run.status),
    h('h1', null, oneLine(run.crew)),
    button('btn flat mono dim wide', 'Copy the id', () => copy(S.conversation || run.id), oneLine(S.conversation || run.id).slice(0, 24)),
    h('span', { class: 'cut grow dim', title: visible(run.goal) }, oneLine(run.goal)),
    ...turns(run), ...controls(run));
  $('#head').replaceChildren(top, figures(run, t));
  drawDuration();
  top.firstElementChild.id = 'menu';
}

/** A switch between one turn and the whole conversation. @param {any} run */
function turns(run) {
  if (S.conversation) return [h('span', { class: 'dim wide' }, many(run.turns, 'turn'))];
  if (!run.turn || (run.turn < 2 && S.runs.filter(r => r.conversation_id === run.conversation).length < 2)) return [];
  return [button('btn wide', 'Show all turns of this conversation', () => actions.openConversation(run.conversation), icon('chat'), `turn ${run.turn}`)];
}

/** @param {any} run */
function controls(run) {
  const made = [];
  if (S.rights.run && hasCrew() && (run.status === 'running' || run.status === 'paused')) {
    made.push(sure === run.id
      ? button('btn bad', 'Confirm: cancel the run', () => act(() => api.cancel(run.id), 'Cancelled'), 'Cancel the run?')
      : button('btn wide', 'Cancel the run', () => { sure = run.id; draw(); setTimeout(() => { sure = ''; draw(); }, 4000); }, 'Cancel'));
  }
  if (S.rights.approve && hasCrew() && (run.status === 'failed' || run.status === 'interrupted')) made.push(button('btn wide', 'Resume the run', () => resume(run.id), icon('retry'), 'Resume'));
  made.push(h('a', { class: 'btn wide', href: api.exportAddress(run.id), download: '', title: 'Run, transcript and events as JSON, which crew simulate reads' }, icon('export'), 'Export'));
  made.push(button('btn', 'The cost under another history policy (w)', actions.whatIf, icon('whatif'), h('span', { class: 'wide' }, 'What if')));
  return made;
}

/** What the run cost, and what pruning saved; without prices, in tokens. @param {any} t */
function costs(t) {
  if (!S.view?.priced) return [fact('Cost', '–', 'no price known'), t.tokens_saved > 0 ? fact('Pruning saved', short(t.tokens_saved), 'tokens') : null];
  const whole = (t.cost ?? 0) + (t.saved ?? 0), share = whole ? percent(t.saved / whole) + ' · ' : '';
  return [
    fact('Cost', usd(t.cost ?? (t.known_cost || null)), t.cost == null && t.known_cost ? 'at least' : ''),
    t.saved == null ? null : fact('Pruning saved', h('span', { class: t.saved >= 0 ? 'less' : 'more' }, usd(t.saved)), `${share}${short(Math.max(0, t.tokens_saved))} tokens`, null, 'Against the same run with the whole history in each request, read from a warm cache where the service has one; minus the cost of summaries'),
  ];
}

/** The time goes on while the run is under way, and while it waits. */
function drawDuration() {
  const view = S.view, element = $('#duration');
  if (!view || !element) return;
  const run = view.run, waits = run.status === 'paused' ? view.sinceUpdate() : 0, waited = run.waited + waits;
  element.replaceChildren(duration(run.status === 'running' ? view.now : run.seconds), waited > 1 ? h('small', null, ` + ${duration(waited)} waiting`) : '');
}

/** @param {any} run @param {any} t */
function figures(run, t) {
  const meter = h('span', { class: 'meter', 'aria-hidden': 'true' }, h('i', { css: { width: (t.in ? t.cached / t.in * 100 : 0) + '%' } }));
  const limit = run.limit == null ? 'no limit' : `limit ${run.limit}`;
  return h('dl', null, ...costs(t),
    fact('Cached', percent(t.cached / t.in), '', meter), fact('Prefix breaks', int(t.breaks)), fact('Requests', int(t.requests)),
    fact('Messages', int(t.messages)), fact('Duration', h('span', { id: 'duration' })),
    run.stopped_by ? fact('Stopped by', `${run.stopped_by.name} ${run.stopped_by.value}`) : null,
    fact('Policy', h('div', { class: 'cut mono policy', title: `${run.policy} · ${limit}` }, run.policy ? /limit=|trigger_at=|max_messages=/.test(run.policy) ? run.policy : `${run.policy} · ${limit}` : limit)));
}

/** @param {string} id */
export const resume = id => act(() => api.answer(id, {}), 'Resumed');

/** @param {() => Promise<any>} request @param {string} done */
async function act(request, done) {
  try {
    await request();
    toast(done);
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), 5000);
  }
  actions.refresh();
}

on('view runs', draw);
on('time', drawDuration);
