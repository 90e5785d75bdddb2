/** What if: the run under other history policies, replayed by the simulator. */

import * as api from './api.js';
import { $, button, copy, h, icon, prepare, toast } from './dom.js';
import { int, percent, usd } from './format.js';
import { paint } from './matrix.js';
import { CACHED, EVICTED, FRESH, MASKED, SUMMED } from './model.js';
import { S } from './state.js';

const LETTERS = { c: CACHED, f: FRESH, m: MASKED, s: SUMMED, e: EVICTED }, AS_RUN = 'as run';
const HEADS = ['Policy', 'Limit', 'Requests', 'Summaries', 'Peak', 'Input tokens', 'Cached', 'Breaks', 'Cost', 'Δ cost', 'Δ tokens', 'Goal', 'Constraints', 'Valid'];
/** @type {any} */
let info = null;
let limit = 50, chosen = 'rolling', asked = 0;
/** @type {Map<string, any>} results and errors by run, version, policy and limit */
const results = new Map();

/** @param {string} text */
const column = text => [...text.matchAll(/([a-z])(\d*)/g)].flatMap(([, letter, n]) => Array(+n || 1).fill(LETTERS[letter]));
/** @param {string} policy @param {number} [of] */
const keyOf = (policy, of = limit) => `${S.runId} ${S.view?.run.updated} ${policy} ${policy === AS_RUN ? '' : of}`;

export async function open() {
  if (!S.view) return;
  const dialog = $('#whatif');
  try {
    info = await api.whatIf(S.view.run.id);
  } catch (error) {
    return toast(error instanceof Error ? error.message : String(error), 5000);
  }
  limit = info.limit ?? 50;
  draw();
  dialog.showModal();
  load();
}

/** Replay one policy after the other; a newer choice of the limit ends the older one. */
async function load() {
  const mine = ++asked, run = S.view?.run.id;
  for (const policy of [AS_RUN, ...info.offered.map((/** @type {any} */ o) => o.policy)]) {
    const key = keyOf(policy);
    if (!results.has(key)) {
      try {
        results.set(key, await api.whatIf(run, policy, limit));
      } catch (error) {
        results.set(key, { error: error instanceof Error ? error.message : String(error) });
      }
    }
    if (mine !== asked || !$('#whatif').open) return;
    draw();
  }
}

/** @param {number} value */
const delta = value => !Number.isFinite(value) ? '' : Math.abs(value) < 0.005 ? h('span', { class: 'dim' }, '0 %') : h('span', { class: value < 0 ? 'less' : 'more' }, `${value < 0 ? '−' : '+'}${percent(Math.abs(value))}`);

function draw() {
  const dialog = $('#whatif'), base = results.get(keyOf(AS_RUN)), usable = base && !base.error ? base : null;
  const rows = info.offered.map((/** @type {any} */ o) => ({ ...o, result: results.get(keyOf(o.policy)) })), ready = rows.filter((/** @type {any} */ r) => r.result && !r.result.error);
  const cheapest = ready.length === rows.length ? ready.reduce((/** @type {any} */ a, /** @type {any} */ b) => b.result.cost < a.result.cost ? b : a) : null;
  const best = !cheapest ? '' : usable && usable.cost <= cheapest.result.cost ? AS_RUN : cheapest.policy;
  const code = rows.find((/** @type {any} */ r) => r.policy === chosen)?.code.replaceAll(/\b(limit|max_messages|trigger_at|prune_to)=\d+/g, (/** @type {string} */ x) => x.replace(/\d+/, String(limit))) ?? '';
  const turns = S.view?.run.inherited ? ' The replay begins with the first turn of the conversation.' : '';
  dialog.replaceChildren(
    h('div', { class: 'bar' }, h('b', null, 'What if'), h('span', { class: 'dim cut grow' }, `the same messages under another policy, replayed by the simulator; no model is asked.${turns}`), button('btn flat', 'Close (Esc)', () => dialog.close(), icon('x'))),
    h('div', { class: 'in' },
      h('div', { class: 'limit' }, h('span', { id: 'lim' }, 'Limit'), limits(), h('span', { class: 'dim grow' }, 'messages'), h('code', { class: 'mono cut' }, `history=${code}`), button('btn', 'Copy as code', () => copy(`CrewExecutor(crew, history=${code})`), icon('copy'), 'Copy')),
      h('div', { class: 'thumbs' }, rows.map((/** @type {any} */ r) => thumb(r, usable))),
      h('div', { class: 'scroll' }, table(rows, base, usable, best)),
      h('p', { class: 'note dim' }, usable ? `Differences compare replays: with the run's own policy, ${info.own}, replayed the same way. ${S.view?.priced ? `The bill of the run was ${usd(S.view.run.totals.cost)}.` : 'No price of its models is known.'} Prices of ${usable.priced_as}; extracts take the place of summaries.` : base?.error ?? 'Replaying the run under its own policy…')));
  for (const canvas of dialog.querySelectorAll('canvas')) drawThumb(/** @type {HTMLCanvasElement} */ (canvas));
}

function limits() {
  return h('span', { class: 'seg', role: 'group', 'aria-labelledby': 'lim' }, info.limits.map((/** @type {number} */ n) =>
    h('button', { type: 'button', 'aria-pressed': String(n === limit), on: { click: () => { limit = n; draw(); load(); } } }, n)));
}

/** @param {any} r @param {any} base */
function thumb(r, base) {
  const { policy, keeps, result } = r;
  return h('button', { class: 'thumb', type: 'button', 'aria-pressed': String(policy === chosen), on: { click: () => { chosen = policy; draw(); } } },
    h('div', null, h('b', { class: 'grow cut', title: keeps }, policy), h('b', null, result ? result.error ? '–' : usd(result.cost) : '…')),
    result?.error ? h('div', { class: 'refused dim' }, result.error) : h('canvas', { 'data-policy': policy, 'aria-hidden': 'true' }),
    h('div', null, h('span', { class: 'dim cut grow' }, keeps), result && !result.error && base ? delta(result.cost / base.cost - 1) : ''));
}

/** @param {HTMLCanvasElement} canvas */
function drawThumb(canvas) {
  const result = results.get(keyOf(canvas.dataset.policy ?? ''));
  if (!result?.columns || !canvas.clientWidth) return;
  const { context, width, height, ratio } = prepare(canvas), step = Math.max(1, Math.ceil(result.columns.length / width)), columns = [];
  for (let i = 0; i < result.columns.length; i += step) columns.push(column(result.columns[i]));
  const rows = Math.max(1, ...columns.map(c => c.length)), tops = Array.from({ length: rows + 1 }, (_, i) => i / rows);
  paint(context, columns.map(c => Uint8Array.from({ length: rows }, (_, i) => c[i] ?? 0)), { x: 0, width, height, tops }, ratio);
}

/** @param {any[]} rows @param {any} base @param {any} usable @param {string} best */
function table(rows, base, usable, best) {
  const cells = (/** @type {any} */ r) => [r.limit ?? 'none', int(r.requests), int(r.summaries), int(r.peak), int(r.tokens), percent(r.cached), int(r.breaks), usd(r.cost),
    usable ? delta(r.cost / usable.cost - 1) : '', usable ? delta(r.tokens / usable.tokens - 1) : '', percent(r.goal), int(r.constraints), `${r.valid}/${r.requests}`];
  const mark = (/** @type {string} */ policy) => policy === best ? h('span', { class: 'badge cheap' }, 'cheapest') : '';
  const line = (/** @type {any} */ name, /** @type {any} */ r, /** @type {any} */ attributes) => h('tr', attributes, h('td', null, name), !r || r.error ? h('td', { colspan: HEADS.length - 1, class: 'dim' }, r?.error ?? '…') : cells(r).map(x => h('td', null, x)));
  return h('table', null, h('tr', null, HEADS.map(x => h('th', null, x))), line(h('span', { title: info.own }, AS_RUN, mark(AS_RUN)), base, { class: 'base' }),
    rows.map((/** @type {any} */ r) => line(h('span', null, r.policy, mark(r.policy)), r.result, { class: r.policy === chosen ? 'sel' : '', on: { click: () => { chosen = r.policy; draw(); } } })));
}
