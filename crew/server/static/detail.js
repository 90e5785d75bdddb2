/** The selected message: its life over all requests, its cost, and its full text, arguments and results. */

import * as api from './api.js';
import { $, button, colour, copy, h, icon, prepare } from './dom.js';
import { duration, int, many, oneLine, parseJson, sum, usd, visible } from './format.js';
import { paint } from './matrix.js';
import { CACHED, FRESH, NAMES, NONE, SUMMARY, iconName, label, title } from './model.js';
import { FIXED, S, go, message, on, request, thread } from './state.js';

/** @typedef {import('./model.js').Message} Message */

const SHOWN = 6000, SHOWN_INSTRUCTIONS = 1200, MOST_COLUMNS = 600;
/** @type {Map<string, any>} whole messages, by run, path and position */
const bodies = new Map();
/** @type {Set<string>} texts that are shown in full */
const whole = new Set();
let requested = '';

/** JSON indented and coloured; any other text as it is. @param {string} text @param {boolean} prose */
function pretty(text, prose) {
  const value = text.length < 200_000 ? parseJson(text) : null, pre = h('pre', { class: value || !prose ? '' : 'prose', tabindex: 0 });
  if (!value) { pre.textContent = visible(text); return pre; }
  const out = visible(JSON.stringify(value, null, 2).replace(/\[\n\s+([\d.,\s\n-]+?)\n\s+\]/g, (_, list) => '[' + list.replace(/\s+/g, ' ') + ']'));
  if (out.length > 40_000) { pre.textContent = out; return pre; }
  let at = 0;
  for (const match of out.matchAll(/"(?:[^"\\]|\\.)*"(\s*:)?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g)) {
    pre.append(out.slice(at, match.index), h('span', { class: match[1] ? 'j-k' : match[0][0] === '"' ? 'j-s' : 'j-n' }, match[0]));
    at = match.index + match[0].length;
  }
  pre.append(out.slice(at));
  return pre;
}

/** A text with a heading; a long one in parts. @param {string} key @param {string} name @param {string} text @param {string} more @param {boolean} prose @param {boolean} complete @param {number} [most] */
function block(key, name, text, more, prose, complete, most = SHOWN) {
  const cut = complete && text.length > most * 1.3 && !whole.has(key), shown = cut ? text.slice(0, most) : text;
  return h('div', { class: 'code' },
    h('header', null, h('span', { class: 'grow cut' }, oneLine(name), more ? h('span', null, ' · ' + oneLine(more)) : ''), complete ? button('btn flat', 'Copy (y)', () => copy(text), icon('copy')) : h('span', { class: 'dim' }, 'loading…')),
    pretty(shown, prose), cut ? h('div', { class: 'more-text' }, h('button', { class: 'link', type: 'button', on: { click: () => { whole.add(key); draw(); } } }, `Show all ${int(text.length)} characters`)) : '');
}

/** @param {Message} m */
function address(m) {
  const t = thread(), inherited = t.path.includes('/') && m.pos < t.inherited, path = inherited ? t.path.slice(0, t.path.lastIndexOf('/')) : t.path;
  return { run: t.runId, path, key: `${t.runId} ${path} ${m.pos}` };
}

/** The whole message; until it arrives, its beginning. @param {Message} m */
function content(m) {
  const { run, path, key } = address(m), known = bodies.get(key);
  if (known) return { body: known, complete: true };
  if (requested !== key) {
    requested = key;
    api.readMessage(run, path, m.pos).then(body => {
      if (bodies.size > 60) bodies.delete(bodies.keys().next().value ?? '');
      bodies.set(key, body);
    }, error => bodies.set(key, { role: 'error', text: error instanceof Error ? error.message : String(error) })).finally(() => { if (requested === key) requested = ''; if (message()?.pos === m.pos) draw(); });
  }
  const calls = (m.calls ?? []).map(c => ({ ...c, arguments: c.args })), results = (m.results ?? []).map(r => ({ ...r, call_id: r.id }));
  const complete = (m.len ?? 0) <= (m.text ?? '').length && calls.every(c => c.len <= c.args.length) && results.every(r => r.len <= r.text.length);
  return { body: { ...m, calls, results }, complete };
}

/** @param {Message} m @param {number[]} life */
function costOf(m, life) {
  const t = thread(), prices = S.view?.prices ?? {};
  let cost = 0, readings = 0, known = true;
  t.Q.forEach((q, i) => {
    const price = prices[q.model], state = life[i];
    if (state !== FRESH && state !== CACHED && state !== SUMMARY) return;
    readings++;
    if (!price) known = false;
    else cost += m.tok * (state === CACHED || (state === SUMMARY && t.isCached(q, q.place.get(m.pos) ?? 0)) ? price[1] : q.written ? price[2] : price[0]) / 1e6;
  });
  return { cost: known ? cost : null, readings };
}

/** The states of a message in words: `fresh 12, cached 13–22`. @param {number[]} life */
function story(life) {
  const out = /** @type {string[]} */ ([]);
  life.forEach((state, i) => {
    if (!state) return;
    if (state !== life[i - 1]) out.push(`${NAMES[state]} ${i + 1}`);
    else out[out.length - 1] = out[out.length - 1].replace(/(–\d+)?$/, `–${i + 1}`);
  });
  return out;
}

/** The other half of a call: its results, or the reply that made it. @param {Message} m */
function partner(m) {
  const t = thread(), near = [m.pos - 1, m.pos + 1, m.pos + 2].map(pos => t.at(pos)).filter(Boolean);
  const ids = new Set([...(m.calls ?? []).map(c => c.id), ...(m.results ?? []).map(r => r.id)]);
  return near.find(x => x && (m.role === 'tool' ? x.pos < m.pos && x.calls?.some(c => ids.has(c.id)) : x.pos > m.pos && x.results?.some(r => ids.has(r.id))));
}

/** @type {Record<string, string>} where the text of instructions comes from */
const ORIGINS = {
  recorded: 'written by a function, and recorded with the run', crew: 'a constant of the agent', changed: 'as the crew has them now: they were changed since this run',
  unknown: 'a constant of the agent, which is not stored with the run: crew inspect FILE --crew CREW.py shows it',
};

/** The instructions of the selected request, and what each of its tools takes. */
function drawInstructions() {
  const element = $('#detail'), t = thread(), q = request();
  element.hidden = $('#split').hidden = !q;
  if (!q) return;
  const key = `${q.runId} ${q.agent} ${q.head} instructions`, known = bodies.get(key);
  if (!known && requested !== key) {
    requested = key;
    api.readInstructions(q.runId, q.agent, q.head).then(found => bodies.set(key, found), error => bodies.set(key, { text: null, origin: '', problem: error instanceof Error ? error.message : String(error), parts: [] }))
      .finally(() => { if (requested === key) requested = ''; if (S.pos === FIXED) draw(); });
  }
  element.dataset.key = key;
  const life = t.Q.map(x => x.agent === q.agent ? t.fixedState(x) : NONE), canvas = h('canvas', { class: 'life', role: 'img', 'aria-label': 'The requests of this agent' });
  const parts = /** @type {[string, number][]} */ (known?.parts ?? []), tokens = parts.find(part => part[0] === 'instructions')?.[1], tools = parts.filter(part => part[0] !== 'instructions');
  // The parts are estimates; together they are as large as the request says.
  const scale = q.fixed / Math.max(1, sum(parts, part => part[1])), about = (/** @type {number} */ size) => `≈ ${int(Math.max(1, size * scale))}`;
  element.replaceChildren(
    h('div', { class: 'dh' }, icon('agent'), h('b', { class: 'cut' }, 'instructions and tools'), h('span', { class: 'dim cut grow' }, oneLine(q.agent)), button('btn flat', 'Close (Esc)', close, icon('x'))),
    h('div', { class: 'body' }, canvas,
      h('dl', { class: 'kv' }, h('dt', null, 'Size'), h('dd', null, `≈ ${int(q.fixed)} tokens in this request`), h('dt', null, 'Text'), h('dd', null, known ? known.problem ?? ORIGINS[known.origin] ?? '' : 'loading…')),
      known?.text ? block(key, 'instructions', known.text, tokens ? `${about(tokens)} tokens` : '', true, true, SHOWN_INSTRUCTIONS) : known?.text === '' ? h('p', { class: 'dim' }, 'The agent has no instructions.') : '',
      tools.length ? h('div', { class: 'code' }, h('header', null, h('span', { class: 'grow' }, many(tools.length, 'tool')), h('span', null, 'tokens')), h('dl', { class: 'toolsizes' }, tools.map(([name, size]) => [h('dt', { class: 'cut mono' }, oneLine(name.replace(/^tool /, ''))), h('dd', null, about(size))]))) : ''));
  requestAnimationFrame(() => drawLife(canvas, life));
}

function draw() {
  if (S.view && S.pos === FIXED) return drawInstructions();
  const element = $('#detail'), m = message();
  element.hidden = $('#split').hidden = !m;
  if (!m) return;
  const t = thread(), life = t.Q.map(q => t.state(q, m)), words = story(life), { cost, readings } = costOf(m, life), other = partner(m), { body, complete } = content(m), { key } = address(m);
  const pair = (/** @type {string} */ name, /** @type {any[]} */ ...value) => [h('dt', null, name), h('dd', null, ...value)];
  const took = (m.results ?? []).filter(r => r.s != null).map(r => duration(r.s ?? 0)).join(', '), canvas = h('canvas', { class: 'life', role: 'img', 'aria-label': words.join(', ') });
  const role = m.covers ? `stands for ${many(m.covers.length, 'message')}` : m.role === 'tool' ? 'tool result' : m.role, agent = m.agent ?? (m.role === 'tool' ? t.at(m.pos - 1)?.agent : '');
  const scrolled = element.querySelector('.body')?.scrollTop ?? 0, same = element.dataset.key === key;
  element.dataset.key = key;
  element.replaceChildren(
    h('div', { class: 'dh' }, icon(iconName(m)), h('b', { class: 'cut' }, `${label(m)} ${m.covers ? 'summary' : oneLine(title(m))}`), h('span', { class: 'dim cut grow' }, [role, agent].filter(Boolean).map(oneLine).join(' · ')),
      other ? button('btn flat', 'Go to the other half of the call', () => go({ pos: other.pos }, { reveal: true, keep: true }), `${m.role === 'tool' ? 'call' : 'result'} #${other.n}`) : '',
      button('btn flat', 'Close (Esc)', close, icon('x'))),
    h('div', { class: 'body' }, canvas,
      h('dl', { class: 'kv' }, ...pair('Life', (words.length > 6 ? [...words.slice(0, 2), '…', ...words.slice(-3)] : words).join(', ') || 'not sent yet'),
        ...(readings && cost != null ? pair('Cost', `${usd(cost)} in ${many(readings, 'reading')}`) : []), ...pair('Size', `${int(m.tok)} tokens`),
        ...(m.at == null ? [] : pair('Written', `+${duration(m.at)}`, took ? ` after ${took}` : '')),
        ...pair('Id', h('span', { class: 'mono' }, oneLine(m.id)), ' ', h('button', { class: 'link', type: 'button', on: { click: () => copy(m.id) } }, 'copy'))),
      ...texts(m, body, complete, key)));
  if (same) element.querySelector('.body').scrollTop = scrolled;
  requestAnimationFrame(() => drawLife(canvas, life));
}

/** @param {Message} m @param {any} body @param {boolean} complete @param {string} key */
function texts(m, body, complete, key) {
  return [
    body.text ? block(key, m.covers ? 'summary' : 'text', body.text, m.images ? many(m.images, 'image') : '', true, complete) : '',
    ...(body.calls ?? []).map((/** @type {any} */ c, /** @type {number} */ i) => block(`${key} c${i}`, c.name, c.arguments, c.id, false, complete)),
    ...(body.results ?? []).map((/** @type {any} */ r, /** @type {number} */ i) => block(`${key} r${i}`, r.name || 'result', r.text, [r.outcome === 'ok' ? '' : r.outcome, r.call_id].filter(Boolean).join(' · '), false, complete)),
  ];
}

/** @param {HTMLCanvasElement} canvas @param {number[]} life */
function drawLife(canvas, life) {
  if (!canvas.isConnected || !canvas.clientWidth) return;
  const { context, width, ratio } = prepare(canvas), per = Math.ceil(life.length / MOST_COLUMNS), columns = [];
  for (let i = 0; i < life.length; i += per) columns.push([Math.max(...life.slice(i, i + per).map(s => s === NONE ? 0 : s))]);
  const bw = width / Math.max(1, life.length);
  context.fillStyle = colour('bg-raise');
  context.fillRect(0, 0, width, 12);
  paint(context, columns, { x: 0, width, height: 12, tops: [0, 1] }, ratio);
  context.fillStyle = colour('ink');
  context.fillRect((S.n - 1) * bw - 0.5, 0, 1, 12);
  context.fillRect(S.n * bw - 0.5, 0, 1, 12);
}

export function close() {
  delete document.body.dataset.sheet;
  go({ pos: null }, { keep: true });
}

/** Copy the selected message. */
export function copySelected() {
  const m = message(), q = request();
  if (S.pos === FIXED && q) return copy(bodies.get(`${q.runId} ${q.agent} ${q.head} instructions`)?.text ?? '');
  if (!m) return;
  const { body } = content(m);
  copy(body.text || JSON.stringify(body.calls?.length ? body.calls : body.results, null, 2));
}

export function start() {
  on('message theme', draw);
  $('#split').addEventListener('pointerdown', () => {
    const box = $('#request').getBoundingClientRect();
    const move = (/** @type {PointerEvent} */ e) => { $('#detail').style.flexBasis = Math.max(80, Math.min(box.height - 220, box.bottom - e.clientY)) + 'px'; };
    addEventListener('pointermove', move);
    addEventListener('pointerup', () => removeEventListener('pointermove', move), { once: true });
  });
  $('#split').addEventListener('keydown', (/** @type {KeyboardEvent} */ e) => {
    if (e.key !== 'ArrowUp' && e.key !== 'ArrowDown') return;
    e.preventDefault();
    e.stopPropagation();
    const now = $('#detail').getBoundingClientRect().height;
    $('#detail').style.flexBasis = Math.max(80, now + (e.key === 'ArrowUp' ? 24 : -24)) + 'px';
  });
}
