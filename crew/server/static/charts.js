/** Tokens of each request, cost so far, marks of prunings and summaries, and the scrubber. */

import { $, button, h, icon, isPhone, segment, svg, tip } from './dom.js';
import { int, many, oneLine, percent, short, usd } from './format.js';
import { G, columnAt, layout, x, xOf } from './geometry.js';
import { NAMES, STATES } from './model.js';
import { S, emit, go, isFollowing, on, request, thread } from './state.js';

/** @typedef {import('./model.js').Request} Request */

/** The next round number. @param {number} v */
function nice(v) {
  if (!(v > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(v));
  return [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].map(m => m * power).find(m => m >= v * 0.999) ?? v;
}

/** @param {number} most @param {(v: number) => number} y @param {(v: number) => string} text */
const gridLines = (most, y, text) => [0, 0.5, 1].flatMap(part => [
  svg('path', { class: 'c-grid', d: `M${G.left} ${y(most * part)}h${G.width}` }),
  svg('text', { x: G.left - 5, y: y(most * part) + 3.5, 'text-anchor': 'end' }, text(most * part))]);

function drawTokens() {
  const height = isPhone() ? 54 : 76, chart = $('#c1'), gap = G.bw >= 5 ? 1.5 : G.bw >= 3 ? 0.6 : 0;
  const top = nice(Math.max(1, ...G.columns.map(({ q }) => q.in + q.out))), y = (/** @type {number} */ v) => height - v / top * (height - 4);
  const bars = (/** @type {(q: Request) => number} */ low, /** @type {(q: Request) => number} */ high) => G.columns.map(({ q }, i) => high(q) <= low(q) ? '' :
    `M${(G.left + i * G.bw + gap / 2).toFixed(2)} ${y(low(q)).toFixed(2)}h${(G.bw - gap).toFixed(2)}V${y(high(q)).toFixed(2)}h${(gap - G.bw).toFixed(2)}z`).join('');
  chart.setAttribute('height', height + 4);
  chart.setAttribute('aria-label', `Tokens of each request, at most ${int(Math.max(0, ...thread().Q.map(q => q.in)))}`);
  chart.replaceChildren(...gridLines(top, y, short), svg('path', { class: 'c-cached', d: bars(() => 0, q => q.front) }),
    svg('path', { class: 'c-fresh', d: bars(q => q.front, q => q.billed ? q.in : 0) }), svg('path', { class: 'c-wait', d: bars(() => 0, q => q.billed ? 0 : q.in) }), svg('path', { class: 'c-out', d: bars(q => q.in, q => q.in + q.out) }));
}

function drawCosts() {
  $('#c2').classList.toggle('off', !S.view?.priced);
  $('#ct2').hidden = !S.view?.priced;
  if (!S.view?.priced) return;
  const height = isPhone() ? 36 : 50, chart = $('#c2'), Q = G.columns.map(c => thread().Q[c.to - 1]);
  const most = nice(Math.max(...Q.map(q => Math.max(q.cum, q.unbounded)))), y = (/** @type {number} */ v) => height - v / most * (height - 4);
  const line = (/** @type {(q: Request) => number} */ f) => Q.map((q, i) => `${i ? 'L' : 'M'}${x(i).toFixed(1)} ${y(f(q)).toFixed(1)}`).join('');
  const back = (/** @type {(q: Request) => number} */ f) => Q.map((_, i) => Q.length - 1 - i).map(i => `L${x(i).toFixed(1)} ${y(f(Q[i])).toFixed(1)}`).join('');
  const upper = (/** @type {Request} */ q) => Math.max(q.cum, q.unbounded), digits = most < 0.01 ? 4 : most < 0.1 ? 2 : most < 10 ? 1 : 0;
  chart.setAttribute('height', height + 6);
  chart.setAttribute('aria-label', `Cost so far ${usd(Q[Q.length - 1].cum)}, without pruning ${usd(Q[Q.length - 1].unbounded)}`);
  chart.replaceChildren(...gridLines(most, y, v => '$' + v.toFixed(digits)), svg('path', { class: 'c-gap', d: line(upper) + back(q => q.cum) + 'z' }),
    svg('path', { class: 'c-loss', d: line(upper) + back(q => q.unbounded) + 'z' }), svg('path', { class: 'c-unb', d: line(q => q.unbounded) }), svg('path', { class: 'c-real', d: line(q => q.cum) }));
}

/** What happened to the history before a request, in words. @param {any} b */
function describeChange(b) {
  if (b.kind === 'prune') return `${b.policy} pruned ${b.before} → ${b.after} messages: ${b.reason}`;
  if (b.kind === 'mask') return `${b.policy} masked ${many(b.masked.length, 'tool result')}: ${b.reason}`;
  if (b.kind === 'cut') return `${b.policy} cut ${many(b.masked.length, 'tool result')}: ${b.reason}`;
  if (b.kind === 'summary') return `summary of ${many(b.covers, 'message')}, ${int(b.tokens[0])} → ${int(b.tokens[1])} tokens${b.cost == null ? '' : ', ' + usd(b.cost)}`;
  return `no summary: ${b.reason}; ${many(b.waiting, 'message')} wait`;
}

function drawMarks() {
  const marks = [], view = S.view, turns = [], space = isPhone() ? 14 : 11;
  let last = -99;
  for (const [i, column] of G.columns.entries()) {
    const Q = thread().Q.slice(column.from - 1, column.to), changes = Q.flatMap(q => q.before);
    const kind = ['failed', 'summary', 'prune', 'cut', 'mask'].find(k => changes.some(b => b.kind === k));
    const before = thread().Q[column.from - 2];
    if (before && Q[0].turn !== before.turn) turns.push(h('i', { class: 'turn', css: { left: G.left + i * G.bw + 'px' } }));
    if (kind && x(i) - last >= space) {
      const text = changes.slice(0, 6).map(describeChange).join('\n') + (changes.length > 6 ? `\nand ${changes.length - 6} more` : '');
      marks.push(mark(x(i), kind, text, Q.find(q => q.before.length)?.n ?? column.from));
      last = x(i);
    } else if (!S.thread && before && Q[0].agent !== before.agent && view?.threads.some(t => t.group && t.Q.length && t.Q[0].at >= (before.end ?? 0) - 0.01 && t.Q[0].at <= Q[0].at)) {
      const names = view.threads.filter(t => t.group && t.Q.length && t.Q[0].at >= (before.end ?? 0) - 0.01 && t.Q[0].at <= Q[0].at).map(t => t.name);
      marks.push(mark(G.left + i * G.bw, 'fork', `branches: ${names.join(', ')}`, Q[0].n));
    }
  }
  $('#marks').replaceChildren(...turns, ...marks);
}

/** @param {number} left @param {string} kind @param {string} text @param {number} n */
function mark(left, kind, text, n) {
  const made = button(kind, text, () => go({ n, span: null }), icon(kind));
  made.style.left = left + 'px';
  made.dataset.tip = text;
  made.title = '';
  return made;
}

/** Names of agents in the middle of their requests; those that would collide are left out. */
function drawAgents() {
  /** @type {{ from: number, to: number, name: string }[]} */
  const spans = [], width = $('#plots').clientWidth;
  G.columns.forEach(({ q }, i) => {
    const last = spans[spans.length - 1];
    if (!last || last.name !== q.agent) spans.push({ from: i, to: i + 1, name: q.agent });
    else last.to = i + 1;
  });
  let right = 0;
  $('#agents').replaceChildren(...spans.slice(0, 150).flatMap(s => {
    const name = oneLine(s.name), wide = name.length * 7 + 4, middle = G.left + (s.from + s.to) / 2 * G.bw, left = Math.max(4, Math.min(width - wide - 4, middle - wide / 2)), fits = left >= right;
    if (fits) right = left + wide + 4;
    return [h('i', { css: { left: G.left + s.from * G.bw + 'px', width: Math.max(2, (s.to - s.from) * G.bw - 2) + 'px' } }), fits ? h('span', { css: { left: left + 'px' } }, name) : ''];
  }).filter(Boolean));
}

function drawScrubber() {
  const input = $('#scrub input'), thumb = 16, first = G.columns[0]?.from ?? 1, last = G.columns[G.columns.length - 1]?.to ?? 1;
  input.min = first;
  input.max = last;
  input.style.left = G.left + G.bw / 2 - thumb / 2 + 'px';
  input.style.width = Math.max(thumb, G.width - G.bw + thumb) + 'px';
  $('#scrub .track').style.left = G.left + 'px';
  $('#scrub .track').style.width = G.width + 'px';
}

function drawThreads() {
  const view = S.view;
  if (!view) return;
  $('#threads').replaceChildren(...(view.threads.length > 1 ? view.threads : []).map((t, i) =>
    h('button', { type: 'button', title: i ? 'A branch: a transcript of its own' : 'The shared transcript', 'aria-pressed': String(i === S.thread), on: { click: () => go({ thread: i, span: null }) } }, i === 1 ? icon('fork') : '', oneLine(t.name))));
  $('#threads button[aria-pressed=true]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

function drawZoom() {
  const all = thread().Q.length;
  $('#zoom').replaceChildren(...(S.zoom ? [button('btn flat', 'Show all requests (0)', () => { S.zoom = null; emit('layout'); }, `${S.zoom[0]}–${S.zoom[1]} of ${int(all)}`, icon('x'))] : []));
}

/** @param {Request} q */
export function describe(q) {
  const t = thread();
  return `Request ${q.n} of ${t.Q.length}, ${q.agent}, ${q.sent.length} of ${t.exists(q)} messages sent, ${q.billed ? `${percent(q.cached / q.in)} cached` : q.open ? 'waiting for the reply' : 'no reply'}${q.broke ? ', prefix broke: ' + q.rule : ''}`;
}

/** What follows the selected request. */
export function drawSelected() {
  const q = request();
  if (!q || !G.bw) return;
  const at = xOf(S.n), input = $('#scrub input');
  input.value = S.n;
  input.setAttribute('aria-valuetext', describe(q));
  $('#head1').style.transform = `translateX(${at}px)`;
  $('#head1 span').textContent = int(S.n);
  drawFollow();
  const swatch = (/** @type {string} */ cls, /** @type {string} */ word, /** @type {string} */ value) => [h('i', { class: 'sw ' + cls }), h('span', { class: 'dim' }, word), h('b', null, value)];
  $('#ct1').replaceChildren(h('b', { class: 'tt' }, 'Tokens per request'), ...(!q.billed ? swatch('sq', q.open ? 'waiting, about' : 'not billed, about', int(q.in)) : [...swatch('s1', thread().reports ? 'cached' : 'unchanged', int(q.front)), ...swatch('s2', 'fresh', int(q.in - q.front)), ...swatch('so', 'output', int(q.out))]));
  const saved = q.unbounded - q.cum;
  $('#ct2').replaceChildren(h('b', { class: 'tt' }, 'Cost so far'), h('i', { class: 'ln' }), h('b', null, usd(q.cum)), h('i', { class: 'ln dash' }), h('span', { class: 'dim', title: 'The whole history in each request, read from a warm cache where the service has one' }, 'unbounded'), h('b', null, usd(q.unbounded)),
    Math.abs(saved) < 5e-5 ? '' : h('span', { class: saved >= 0 ? 'less' : 'more' }, `${saved >= 0 ? 'saved' : 'lost'} ${usd(Math.abs(saved))}`));
  drawKey(q);
  drawFoot(q);
}

function drawFollow() {
  const all = thread().Q.length, live = S.view?.run.status === 'running';
  $('#follow').replaceChildren(...(live ? [button('btn flat' + (isFollowing() ? ' less' : ''), isFollowing() ? 'Following the newest request' : 'Go to the newest request', () => go({ n: thread().Q.length, pos: null, span: null }), h('i', { class: 'pulse' }), isFollowing() ? 'following' : `${int(all - S.n)} newer`)] : []));
}

/** The legend, which also counts the messages of the selected request. @param {Request} q */
function drawKey(q) {
  const t = thread(), counts = t.counts(q), scale = h('span', { class: 'seg', role: 'group', 'aria-label': 'Row height' });
  segment(scale, [[0, 'messages', 'Every message is one row (g)'], [1, 'tokens', 'Height and area show tokens (g)']], S.scale, value => { S.scale = value; emit('scale'); });
  const light = (/** @type {number} */ state) => () => { S.lit = state; emit('lit'); };
  const word = (/** @type {number} */ s) => s === 1 && !t.reports ? 'unchanged' : NAMES[s];
  const key = $('#key'), rows = STATES.map(s => {
    const { n, tok } = counts[s], zero = n ? '' : 'zero';
    return h('button', { type: 'button', 'aria-label': `${word(s)}: ${n} messages, ${int(tok)} tokens`, on: { pointerenter: light(s), pointerleave: light(0), focus: light(s), blur: light(0) } },
      h('i', { class: 'sw s' + s }), h('span', { class: zero }, word(s)), h('span', { class: 'n ' + zero }, int(n)), h('span', { class: 'n dim' }, n ? short(tok) : ''));
  });
  key.replaceChildren(scale, ...rows);
  // The matrix leaves its lower left corner free, unless the first request in view has many messages already.
  const first = G.columns[0]?.q, size = Math.max(1, t.M.length), crowded = first && first.seen > size * 0.4, place = !crowded ? '' : G.free > 170 ? 'right' : 'below';
  key.style.left = place === 'right' ? G.left + G.width + 28 + 'px' : '';
  key.style.bottom = place === 'right' ? 'auto' : '';
  key.style.top = place === 'right' ? $('#grid').offsetTop + 'px' : '';
  if (key.className === place) return;
  key.className = place;
  emit('grid');
}

/** The line below the matrix on a phone. @param {Request} q */
function drawFoot(q) {
  $('#hfoot').replaceChildren(button('btn flat', 'Previous request', () => go({ n: S.n - 1 }), icon('left')),
    h('button', { class: 'mid', type: 'button', on: { click: () => emit('tab', 'request') } }, h('b', null, `Request ${S.n}`), ` · ${oneLine(q.agent)} · ${q.sent.length} of ${thread().exists(q)} sent`,
      h('div', { class: q.broke ? 'more' : 'dim' }, q.broke ? 'prefix broke: ' + q.rule : q.rule || (q.billed ? `prefix held, ${percent(q.cached / q.in)} cached` : q.open ? 'waiting for the reply' : 'no reply'))),
    button('btn flat', 'Next request', () => go({ n: S.n + 1 }), icon('chev')));
}

/** All charts, for new data or another size. */
export function drawCharts() {
  drawThreads();
  if (!S.view || !layout()) {
    for (const id of ['#c1', '#c2', '#marks', '#agents', '#ct1', '#ct2', '#key', '#hfoot', '#zoom', '#follow']) $(id).replaceChildren();
    return false;
  }
  drawTokens();
  drawCosts();
  drawMarks();
  drawAgents();
  drawScrubber();
  drawZoom();
  return true;
}

export function placeCursor() {
  const scrub = $('#scrub'), flag = $('#head1 span');
  $('#head1').style.height = $('#grid').offsetTop - 24 + 'px';
  flag.style.top = scrub.offsetTop - 24 + (scrub.clientHeight - flag.clientHeight) / 2 + 'px';
}

export function start() {
  $('#scrub input').addEventListener('input', (/** @type {any} */ e) => go({ n: +e.target.value, span: null }));
  for (const chart of [$('#c1'), $('#c2')]) {
    chart.addEventListener('click', (/** @type {MouseEvent} */ e) => { const column = G.columns[columnAt(e)]; if (column) go({ n: column.q.n, span: null }); });
    chart.addEventListener('pointerleave', () => tip());
    chart.addEventListener('pointermove', (/** @type {PointerEvent} */ e) => {
      const column = G.columns[columnAt(e)], q = column?.q;
      if (!q) return;
      const several = column.to > column.from ? ` (the most expensive of ${column.from}–${column.to})` : '';
      const bill = q.billed ? ` · ${usd(q.cost)}\n${int(q.in)} tokens in, ${percent(q.cached / q.in)} cached · ${int(q.out)} out` : `\nabout ${int(q.in)} tokens in, ${q.open ? 'waiting for the reply' : 'no reply'}`;
      tip(e, `request ${q.n}${several} · ${oneLine(q.agent)}${bill}${q.rule ? '\n' + (q.broke ? 'prefix broke: ' : '') + q.rule : ''}`);
    });
  }
  on('lit-key', drawSelected);
}
