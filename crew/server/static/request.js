/** The selected request: its facts, its prompt to scale, and its messages as the model got them. */

import * as api from './api.js';
import { $, button, h, icon, segment, toast } from './dom.js';
import { describe } from './charts.js';
import { duration, int, many, oneLine, percent, plainArguments, short, sum, usd } from './format.js';
import { G } from './geometry.js';
import { drawRowLine } from './matrix.js';
import { EVICTED, FRESH, CACHED, MASKED, NAMES, NONE, SUMMED, iconName, label, title } from './model.js';
import { Rows } from './rows.js';
import { FIXED, S, emit, go, on, request, thread } from './state.js';

/** @typedef {import('./model.js').Message} Message */
/** @typedef {{ key: any, kind?: string, m?: Message, text?: string, pre?: string, tok?: number, state?: number, price?: number, calm?: boolean, reply?: boolean, members?: Message[] }} Item */

/** @param {Message} m */
export const preview = m => m.text ? oneLine(m.text) : m.role === 'tool' ? oneLine((m.results ?? []).map(r => r.text).join(' ')) : (m.calls ?? []).map(c => plainArguments(c.args)).join(', ');

const swatch = (/** @type {number | undefined} */ state) => h('i', { class: 'sw pr s' + (state ?? 0) });

/** @param {Item} item */
function signature(item) {
  const q = request(), t = thread(), m = item.m;
  return [S.runId, S.thread, item.key, item.kind, item.text, item.pre, item.tok, item.price, item.state, item.reply, m && q && [t.state(q, m), q.covered.get(m.pos), m.pos === S.pos, m.tok, isFound(m)], item.kind === 'fixed' && q && [q.agent, t.fixedState(q), q.fixed, S.pos === FIXED]].join();
}

const rows = new Rows($('#msgs'), signature, (node, item) => {
  const t = thread(), q = request();
  if (!q) return;
  node.setAttribute('role', 'option');
  node.id = 'message-row-' + item.key;
  node.setAttribute('aria-selected', String(item.kind === 'fixed' ? S.pos === FIXED : !!item.m && item.m.pos === S.pos));
  node.removeAttribute('title');
  if (item.kind === 'cut') {
    node.className = 'row msg cutline' + (item.calm ? ' calm' : '');
    node.replaceChildren(swatch(item.price), item.calm ? '' : icon('prune'), h('span', { class: 'cut' }, item.text));
  } else if (item.kind === 'fold') {
    node.className = 'row msg fold';
    node.replaceChildren(swatch(item.state), h('span', { class: 'no' }, icon('chev')), h('span', { class: 'cut grow' }, item.text, h('span', { class: 'pre' }, item.pre)), h('span', { class: 'tk' }, item.tok ? int(item.tok) : ''));
  } else if (item.kind === 'fixed') {
    node.className = 'row msg';
    node.title = 'Show the instructions, and the tokens of each tool';
    node.replaceChildren(swatch(t.fixedState(q)), h('span', { class: 'no' }), icon('agent'), h('span', { class: 'cut grow' }, h('b', null, 'instructions and tools '), h('span', { class: 'pre' }, oneLine(q.agent))), h('span', { class: 'tk' }, '≈ ' + int(q.fixed)));
  } else if (item.m) drawMessage(node, item, item.m);
});

/** @param {any} node @param {Item} item @param {Message} m */
function drawMessage(node, item, m) {
  const t = thread(), q = /** @type {import('./model.js').Request} */ (request()), state = item.reply ? NONE : t.state(q, m), off = state === EVICTED || state === SUMMED || state === NONE;
  const bad = m.results?.some(r => r.outcome !== 'ok');
  node.className = `row msg${off && !item.reply ? ' off' : ''}${m.covers ? ' sum' : ''}${isFound(m) ? ' found' : ''}`;
  if (!item.reply) node.title = `${NAMES[state]}: ${t.why(q, m)}`;
  const text = state === MASKED && t.form(q, m) === 'masked' ? '[Omitted]' : preview(m);
  node.replaceChildren(swatch(state), h('span', { class: 'no' }, m.n), icon(bad ? 'failed' : iconName(m)), h('span', { class: 'cut grow' }, h(m.role === 'tool' ? 'span' : 'b', { class: bad ? 'bad' : null }, oneLine(title(m)) + ' '), h('span', { class: 'pre' }, text)),
    m.goal ? h('span', { class: 'tag' }, 'pinned') : t.form(q, m) === 'cut' ? h('span', { class: 'tag' }, 'cut') : '', h('span', { class: 'tk' }, int(t.tokens(q, m, state))));
}

/** @param {Message} m */
const isFound = m => !!S.found && !!(S.found[thread().path]?.includes(m.pos));

/** The rows: what was sent, in order; what was not is folded where it would have been. @returns {Item[]} */
function items() {
  const t = thread(), q = request();
  if (!q) return t.M.map(m => ({ key: m.pos, m }));
  /** @type {Item[]} */
  const out = [{ key: 'fixed', kind: 'fixed', price: t.fixedState(q) }];
  /** @type {Message[]} */
  let run = [], cut = false;
  const only = S.found;
  const flush = () => {
    if (run.length) out.push(...folded(run, q));
    run = [];
  };
  for (const m of t.M) {
    const state = t.state(q, m);
    if (state === NONE || (only && !isFound(m))) continue;
    if (state === SUMMED || state === EVICTED) {
      const first = run[0];
      if (first && (t.state(q, first) !== state || q.covered.get(first.pos) !== q.covered.get(m.pos))) flush();
      run.push(m);
      continue;
    }
    flush();
    const price = t.isCached(q, q.place.get(m.pos) ?? 0) ? CACHED : FRESH;
    if (price === FRESH && !cut && !only) { cut = true; out.push(cutLine(q)); }
    out.push({ key: m.pos, m, price });
  }
  flush();
  return [...out, ...afterwards(q)];
}

/** Messages that a request does not hold. @param {Message[]} run @param {import('./model.js').Request} q @returns {Item[]} */
function folded(run, q) {
  const t = thread(), state = t.state(q, run[0]), key = `f${run[0].pos}-${state}`, real = run.filter(m => !m.covers);
  if (run.length < 3 || !S.fold || S.open.has(key) || S.found) return run.map(m => ({ key: m.pos, m }));
  const range = real.length ? `${label(real[0])}–${label(real[real.length - 1])}` : label(run[0]), by = t.at(q.covered.get(run[0].pos) ?? -1);
  const why = state === SUMMED ? `${label(by)} stands for them` : (t.gone.get(run[0].pos) ?? t.hidden.get(`${q.agent} ${run[0].pos}`))?.policy ?? (q.rule && q.rule !== 'first request' ? q.rule : 'not shown to this agent');
  return [{ key, kind: 'fold', state, tok: sum(run, m => m.tok), members: run, text: `${range} `, pre: `${real.length} ${NAMES[state]}, ${why}` }];
}

/** @param {any} q @returns {Item} */
function cutLine(q) {
  if (!q.broke) return { key: 'cut', kind: 'cut', price: FRESH, calm: true, text: q.rule === 'first request' ? `first request of ${oneLine(q.agent)}: nothing is cached yet` : 'new since the last request' };
  return { key: 'cut', kind: 'cut', price: FRESH, text: `prefix broke · ${short(q.reread)} tokens sent again${q.breakCost ? ` · +${usd(q.breakCost)}` : ''}` };
}

/** The reply, and what came later. @param {import('./model.js').Request} q @returns {Item[]} */
function afterwards(q) {
  const t = thread(), reply = t.at(q.reply), out = /** @type {Item[]} */ ([]), only = S.found;
  if (reply && !only) out.push({ key: 'r', kind: 'cut', calm: true, text: `the reply, ${int(q.out)} tokens in ${duration((q.end ?? q.at) - q.at)}` }, { key: q.reply, m: reply, reply: true });
  else if (q.failed) out.push({ key: 'r', kind: 'cut', calm: true, text: `no reply: ${oneLine(q.failed)}` });
  else if (q.open) out.push({ key: 'r', kind: 'cut', calm: true, text: S.writing?.path === t.path ? `writing: ${oneLine(S.writing.text.slice(-200))}` : 'waiting for the reply…' });
  const later = t.M.filter(m => t.state(q, m) === NONE && m.pos !== q.reply && !m.covers && (!only || isFound(m)));
  if (!later.length) return out;
  if (!S.fold || S.open.has('later') || only) return [...out, ...later.map(m => ({ key: m.pos, m }))];
  return [...out, { key: 'later', kind: 'fold', state: NONE, members: later, text: `${many(later.length, 'later message')} `, pre: '' }];
}

function drawFacts() {
  const t = thread(), q = request();
  if (!q) {
    $('#rqh').replaceChildren(h('b', null, 'Messages'), h('span', { class: 'dim' }, 'no request yet'));
    return $('#rq').replaceChildren();
  }
  $('#rqh').replaceChildren(h('b', null, `Request ${int(q.n)} `), h('span', { class: 'dim cut' }, `of ${int(t.Q.length)} · ${oneLine(q.agent)}`), h('span', { class: 'grow' }),
    button('btn flat', 'Previous request (h)', () => go({ n: S.n - 1, span: null }), icon('left')), button('btn flat', 'Next request (l)', () => go({ n: S.n + 1, span: null }), icon('chev')));
  const fact = (/** @type {string} */ name, /** @type {any[]} */ ...value) => [h('dt', null, name), h('dd', { class: 'cut' }, ...value)];
  const saved = q.saved ?? 0, limit = S.view?.run.limit, first = t.at(q.sent[q.same]?.[0] ?? -1);
  const prefix = q.broke ? h('span', { class: 'more', title: q.before.map(b => b.reason).filter(Boolean).join('; ') }, `broke at ${label(first)}: ${q.rule}`) : q.rule ? `${q.rule} of ${oneLine(q.agent)}` : `held for ${many(q.same, 'message')}`;
  $('#rq').replaceChildren(promptScale(), h('dl', { class: 'facts' },
    ...fact('Sent', h('b', null, q.sent.length), ` of ${t.exists(q)} messages${limit ? `, limit ${limit}` : ''} · `, h('b', null, int(q.in)), ` tokens${q.billed ? '' : ' (estimate)'}`),
    ...fact('Cost', ...(!S.view?.priced && q.billed ? [h('span', { class: 'dim' }, 'no price known'), q.unpruned > q.in ? h('span', { class: 'dim' }, ` · ${short(q.unpruned)} tokens unpruned`) : ''] : !q.billed ? [q.open ? 'waiting for the reply' : 'no reply, no bill'] : [h('b', null, usd(q.cost)), q.saved == null ? '' : ` · unbounded ${usd((q.cost ?? 0) + saved)} `, Math.abs(saved) > 1e-6 ? h('span', { class: saved > 0 ? 'less' : 'more' }, `${saved > 0 ? '−' : '+'}${usd(Math.abs(saved))}`) : '', q.unpruned > q.in ? h('span', { class: 'dim' }, ` · ${short(q.unpruned)} tokens unpruned`) : ''])),
    ...fact('Prefix', ...(q.billed ? [h('b', null, percent(q.cached / q.in)), ' cached · '] : []), prefix, q.retries ? h('span', { class: 'more' }, ` · ${many(q.retries, 'retry', 'retries')}`) : '', q.repairs.length ? h('span', { class: 'more', title: q.repairs.join('; ') }, ` · ${many(q.repairs.length, 'repair')}`) : '')));
}

/** The prompt from its first token to its last. */
function promptScale() {
  const t = thread(), q = /** @type {import('./model.js').Request} */ (request()), joined = /** @type {[number, number, string][]} */ ([]);
  const parts = /** @type {[number, number, string][]} */ ([[t.fixedState(q), q.fixed, 'instructions and tools'], ...q.sent.map(([pos]) => t.at(pos)).filter(Boolean).map(m => [t.state(q, /** @type {Message} */ (m)), t.tokens(q, /** @type {Message} */ (m)), `${label(m)} ${title(/** @type {Message} */ (m))}`])]);
  for (const [state, tokens, name] of parts) {
    const last = joined[joined.length - 1];
    if (last && last[0] === state) { last[1] += tokens; last[2] = name; } else joined.push([state, tokens, name]);
  }
  return h('div', { class: 'scale', role: 'img', 'aria-label': 'The prompt to scale, from its first token to its last' },
    joined.slice(0, 120).map(([state, tokens, name]) => h('i', { class: 'sw s' + state, css: { 'flex-grow': tokens }, title: `${NAMES[state]}, ${int(tokens)} tokens, up to ${oneLine(name)}` })));
}

let announce = 0;
/** @param {any} [how] */
function draw(how = {}) {
  if (!S.view) return;
  drawFacts();
  segment($('#mode'), [[true, 'as sent', 'The prompt; what is not in it is folded (f)'], [false, 'transcript', 'Every message (f)']], S.fold, fold => { S.fold = fold; S.open.clear(); draw({ keep: true }); });
  rows.set(items());
  if (!how.keep && S.pos == null && !how.reveal) rows.scroll(0);
  clearTimeout(announce);
  const q = request();
  if (q && !how.keep) announce = window.setTimeout(() => { $('#live').textContent = describe(q); }, 400);
}

/** Scroll to the selected message, and open the fold that hides it. */
function reveal() {
  const find = () => rows.items.findIndex(item => S.pos === FIXED ? item.kind === 'fixed' : item.m?.pos === S.pos);
  let at = find();
  if (at < 0) {
    const fold = rows.items.find(item => item.members?.some(m => m.pos === S.pos));
    if (fold) { S.open.add(fold.key); rows.set(items()); at = find(); }
  }
  if (at >= 0) rows.reveal(at);
}

/** @param {number} by */
export function step(by) {
  const list = rows.items.flatMap(item => item.kind === 'fixed' ? [FIXED] : item.m ? [item.m.pos] : []), at = list.indexOf(S.pos ?? NaN), next = list[Math.max(0, Math.min(list.length - 1, at + by))];
  if (next !== undefined) go({ pos: next }, { reveal: true, keep: true });
}

export function toggleFold() {
  S.fold = !S.fold;
  S.open.clear();
  draw({ keep: true });
}

let searching = 0;
/** Search the transcript; the list then has the messages that contain all words. @param {string} words */
function search(words) {
  clearTimeout(searching);
  if (!words.trim()) { S.found = null; $('#hits').textContent = ''; draw({ keep: true }); emit('rows'); return; }
  searching = window.setTimeout(async () => {
    try {
      const { found } = await api.searchRun(S.view?.run.id, words);
      if ($('#words').value !== words) return;
      S.found = found;
      const here = found[thread().path]?.length ?? 0, all = sum(Object.values(found), (/** @type {any} */ list) => list.length);
      $('#hits').textContent = all === here ? String(here) : `${here} of ${all}`;
      draw({ keep: true });
      rows.scroll(0);
    } catch (error) { toast(error instanceof Error ? error.message : String(error)); }
  }, 180);
}

export function start() {
  rows.after = (first, end) => {
    const shown = rows.items.slice(first, end).flatMap(item => item.m ? [item.m.pos] : item.members ? [item.members[0].pos] : []).map(pos => thread().index.get(pos) ?? 0), mark = $('#grid .vp');
    if (!shown.length || !G.tops.length) return;
    const top = G.tops[Math.min(...shown) + 1] ?? 0, bottom = G.tops[Math.max(...shown) + 2] ?? 1;
    mark.style.top = top * G.height + 'px';
    mark.style.height = Math.max(6, (bottom - top) * G.height) + 'px';
  };
  const list = $('#msgs');
  list.addEventListener('pointerover', (/** @type {Event} */ e) => { if (S.view) drawRowLine(rows.at(e)?.m?.pos ?? S.pos); });
  list.addEventListener('pointerleave', () => { if (S.view) drawRowLine(); });
  list.addEventListener('click', (/** @type {Event} */ e) => {
    const item = rows.at(e);
    S.pane = 'request';
    emit('pane');
    if (item?.kind === 'fold') { S.open.add(item.key); rows.set(items()); }
    else if (item?.m || item?.kind === 'fixed') { go({ pos: item.m?.pos ?? FIXED }, { keep: true }); document.body.dataset.sheet = '1'; }
  });
  $('#words').addEventListener('input', (/** @type {any} */ e) => search(e.target.value));
  on('view', how => draw(how));
  on('request', how => draw(how));
  on('message', how => { if (!how.reveal) return rows.set(rows.items); rows.set(items()); reveal(); });
  on('layout', () => { rows.measure(); if (S.view) rows.set(rows.items); });
  on('writing', () => { if (S.view && request()?.open) rows.set(items()); });
}
