/** The matrix of requests and messages, on a canvas. */

import { $, colour, h, prepare, tip } from './dom.js';
import { drawCharts, drawSelected, placeCursor } from './charts.js';
import { int } from './format.js';
import { G, columnAt, columnOf, follow, layout, rowAt, x, xOf, zoom } from './geometry.js';
import { CACHED, EVICTED, FRESH, MASKED, NAMES, NONE, SUMMARY, SUMMED, label, title } from './model.js';
import { FIXED, S, emit, go, on, request, thread } from './state.js';

const VARIABLES = ['bg', 'cached', 'fresh', 'masked', 'summed', 'evicted', 'summary'];
const MOTION = 260, HIGHEST_ROW = 26;
/** Which state a pixel shows that several messages share. */
const PRIORITY = [0, 3, 6, 4, 2, 1, 5];
const canvas = /** @type {HTMLCanvasElement} */ ($('#grid canvas'));
/** 0: every message is one row; 1: height shows tokens; between: on the way. */
let mix = 0;

/** A tile of a hatched state. @param {number} state @param {number} ratio */
function texture(state, ratio) {
  const size = Math.round(4 * ratio), tile = h('canvas', { width: size, height: size }), c = tile.getContext('2d');
  c.fillStyle = colour(VARIABLES[state]);
  c.fillRect(0, 0, size, size);
  c.strokeStyle = c.fillStyle = colour(VARIABLES[state] + '-ln');
  c.lineWidth = ratio;
  if (state === MASKED) {
    c.beginPath();
    for (const from of [-size, 0, size]) { c.moveTo(from - ratio, size + ratio); c.lineTo(from + size + ratio, -ratio); }
    c.stroke();
  } else c.fillRect(0, 0, state === SUMMED ? size : ratio, ratio);
  return tile;
}

/** @type {{ key: string, fills: any[] } | null} */
let cachedFills = null;
/** The fill of each state in the current theme. @param {CanvasRenderingContext2D} context @param {number} ratio */
function fillsOf(context, ratio) {
  const key = colour('bg') + ratio;
  if (cachedFills?.key !== key) {
    const fills = VARIABLES.map((name, state) => [MASKED, SUMMED, EVICTED].includes(state) ? context.createPattern(texture(state, ratio), 'repeat') : colour(name));
    for (const fill of fills) if (fill instanceof CanvasPattern) fill.setTransform(new DOMMatrix().scale(1 / ratio));
    cachedFills = { key, fills };
  }
  return cachedFills.fills;
}

export const forgetFills = () => { cachedFills = null; };

/**
 * Paint columns of states. Equal neighbours are one rectangle; where rows are thinner than a pixel, the state with the
 * highest priority wins.
 * @param {CanvasRenderingContext2D} context @param {ArrayLike<number>[]} columns
 * @param {{ x: number, width: number, height: number, tops: number[], gaps?: boolean }} box @param {number} ratio @param {number} [lit]
 */
export function paint(context, columns, box, ratio, lit = 0) {
  const fills = fillsOf(context, ratio), rows = box.tops.length - 1, bw = box.width / Math.max(1, columns.length);
  const px = (/** @type {number} */ v) => Math.round(v * ratio) / ratio, gap = bw >= 5 ? 1.5 : bw >= 3 ? 0.75 : 0;
  const crowded = rows > box.height, rowGap = !crowded && box.gaps && box.height / rows >= 4.5 && mix < 0.5;
  columns.forEach((given, i) => {
    const column = crowded ? squeeze(given, box.tops, Math.floor(box.height)) : given, count = crowded ? Math.floor(box.height) : rows;
    const top = (/** @type {number} */ row) => px(crowded ? row : box.tops[row] * box.height), left = px(box.x + i * bw), right = px(box.x + (i + 1) * bw);
    for (let a = 0; a < count;) {
      let b = a + 1;
      while (b < count && column[b] === column[a]) b++;
      const state = column[a], solid = state === CACHED || state === FRESH || state === SUMMARY || state === MASKED, inset = solid ? gap : 0;
      if (state) {
        context.globalAlpha = lit && lit !== state ? 0.18 : 1;
        context.fillStyle = fills[state];
        context.fillRect(left + inset / 2, top(a), right - left - inset, Math.max(top(b) - top(a), state === SUMMARY ? 1.5 : 0));
      }
      a = b;
    }
    if (!rowGap) return;
    context.globalAlpha = 1;
    context.fillStyle = fills[0];
    for (let a = 1; a < rows; a++) if (column[a] === CACHED || column[a] === FRESH || column[a] === MASKED || column[a] === SUMMARY) context.fillRect(left, top(a) - 0.5, right - left, 0.75);
  });
  context.globalAlpha = 1;
}

/** One state for each pixel. @param {ArrayLike<number>} column @param {number[]} tops @param {number} pixels */
function squeeze(column, tops, pixels) {
  const out = new Uint8Array(pixels);
  for (let row = 0; row < column.length; row++) {
    const state = column[row];
    if (!state) continue;
    const end = Math.min(pixels, Math.max(Math.floor(tops[row] * pixels) + 1, Math.ceil(tops[row + 1] * pixels) - 1));
    for (let y = Math.floor(tops[row] * pixels); y < end; y++) if (PRIORITY[state] > PRIORITY[out[y]]) out[y] = state;
  }
  return out;
}

/** Row tops between 0 and 1; instructions and tools are the first row. */
function rowTops() {
  const t = thread(), last = G.columns[G.columns.length - 1].q, end = Math.max(last.seen, t.Q[G.columns[G.columns.length - 1].to - 1].seen);
  const live = t.M.map(m => m.pos < end ? 1 : 0), heights = [1, ...live], tokens = [last.fixed, ...t.M.map((m, i) => live[i] * Math.max(40, m.tok))];
  const A = heights.reduce((a, b) => a + b, 0), B = tokens.reduce((a, b) => a + b, 0), tops = [0];
  const share = Math.min(1, A * HIGHEST_ROW / G.height); // few messages do not fill the space
  heights.forEach((height, i) => tops.push(tops[i] + share * (height / A * (1 - mix) + tokens[i] / B * mix)));
  return tops;
}

export function drawGrid() {
  if (!S.view || !canvas.clientWidth || !canvas.clientHeight || !G.columns.length || !request()) return;
  const t = thread(), { context, height, ratio } = prepare(canvas);
  G.height = height;
  G.tops = rowTops();
  paint(context, G.columns.map(({ q }) => t.column(q)), { x: G.left, width: G.width, height, tops: G.tops, gaps: true }, ratio, S.lit);
  for (const old of document.querySelectorAll('#grid .y, #grid .turnline')) old.remove();
  for (const [i, column] of G.columns.entries()) if (i && column.q.turn !== G.columns[i - 1].q.turn) $('#grid').append(h('i', { class: 'turnline', css: { left: G.left + i * G.bw + 'px' } }));
  const at = (/** @type {number} */ i) => (G.tops[i + 1] + G.tops[i + 2]) / 2 * height;
  const put = (/** @type {number} */ i, /** @type {string} */ text, cls = '') => $('#grid').append(h('span', { class: 'y ' + cls, css: { top: at(i) + 'px' } }, text));
  const step = [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find(s => t.size / s <= height / 34) ?? 10000;
  let lastY = 0;
  t.M.forEach((m, i) => {
    const y = G.tops[i + 1] * height;
    if (m.goal) { put(i, 'goal', 'goal'); if (i > 1) lastY = y; }
    else if (typeof m.n === 'number' && m.n % step === 0 && y - lastY > 20 && y < height - 4 && y > 22) { put(i, int(m.n)); lastY = y; }
  });
  canvas.setAttribute('aria-label', `${t.Q.length} requests by ${t.size} messages. Arrow keys move; the list of messages has the same content as text.`);
  drawRowLine();
  drawColumn();
}

/** The frame around the row of a message. @param {number | null} [pos] */
export function drawRowLine(pos = S.pos) {
  const element = $('#grid .rowline'), i = pos == null ? undefined : thread().index.get(pos);
  element.hidden = i === undefined || !G.tops.length;
  if (i === undefined || !G.tops.length) return;
  const born = G.columns.findIndex(({ q }) => thread().state(q, thread().M[i]) !== NONE);
  element.hidden = born < 0;
  if (born < 0) return;
  const y = G.tops[i + 1] * G.height;
  element.style.left = G.left + born * G.bw + 'px';
  element.style.width = (G.columns.length - born) * G.bw + 'px';
  element.style.top = y - 1 + 'px';
  element.style.height = G.tops[i + 2] * G.height - y + 2 + 'px';
}

/** The frame around the column of the selected request. */
function drawColumn() {
  const q = request(), t = thread(), width = Math.max(5, G.bw + 1), element = $('#grid .col');
  if (!q || !G.tops.length) return;
  let last = t.M.length;
  while (last && t.state(q, t.M[last - 1]) === NONE) last--;
  element.style.width = width + 'px';
  element.style.height = (G.tops[last + 1] ?? 1) * G.height + 2 + 'px';
  element.style.transform = `translateX(${xOf(S.n) - width / 2}px)`;
}

/** Change the row height with a short motion. */
function morph() {
  const from = mix, to = S.scale, start = performance.now(), quick = matchMedia('(prefers-reduced-motion: reduce)').matches || thread().M.length > 1500;
  const step = (/** @type {number} */ now) => {
    const p = quick ? 1 : Math.min(1, (now - start) / MOTION);
    mix = from + (to - from) * (1 - (1 - p) ** 3);
    drawGrid();
    if (p < 1) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
  drawSelected();
}

/** Everything that shares the x axis. */
export function drawPlots() {
  const drawn = drawCharts();
  $('#grid').hidden = $('#head1').hidden = !drawn;
  if (!drawn) return;
  drawSelected();
  drawGrid();
  placeCursor();
}

/** @param {PointerEvent} e */
function hover(e) {
  const column = G.columns[columnAt(e)], t = thread(), i = rowAt(e), q = column?.q, m = t.M[i];
  if (!q) return;
  if (dragging && e.pointerType !== 'mouse') return go({ n: q.n, span: null });
  const several = column.to > column.from ? ` (of ${column.from}–${column.to})` : '';
  if (i === -1) return tip(e, `instructions and tools · ${int(q.fixed)} tokens\nrequest ${q.n}${several}: ${NAMES[t.fixedState(q)]}`);
  const state = m ? t.state(q, m) : NONE;
  tip(e, state ? `${label(m)} ${title(m)} · ${int(m.tok)} tokens\nrequest ${q.n}${several}: ${NAMES[state]}, ${t.why(q, m)}` : '');
}

let dragging = false;
export function start() {
  canvas.addEventListener('pointermove', hover);
  canvas.addEventListener('pointerleave', () => tip());
  canvas.addEventListener('pointerdown', () => { dragging = true; });
  addEventListener('pointerup', () => { dragging = false; });
  canvas.addEventListener('click', e => {
    const column = G.columns[columnAt(e)], t = thread(), m = t.M[rowAt(e)];
    if (!column) return;
    S.pane = 'history';
    emit('pane');
    go({ n: column.q.n, span: null, ...(rowAt(e) === -1 ? { pos: FIXED } : m && t.state(column.q, m) ? { pos: m.pos } : {}) }, { reveal: true });
  });
  canvas.addEventListener('dblclick', () => { if (G.columns.some(c => c.to > c.from)) { zoom(60 / Math.max(60, thread().Q.length)); emit('layout'); } });
  canvas.addEventListener('wheel', e => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : 0.8);
    emit('layout');
  }, { passive: false });
  document.addEventListener('pointerover', e => {
    const target = /** @type {any} */ (e.target), with_tip = target.closest?.('[data-tip]');
    if (with_tip) tip(e, with_tip.dataset.tip);
    else if (target !== canvas && !target.closest?.('.chart')) tip();
  });
  on('view layout', drawPlots);
  on('request', () => { if (follow()) { layout(); drawPlots(); } else { drawSelected(); drawColumn(); } });
  on('message', () => { if (S.view && G.columns.length) drawRowLine(); });
  on('lit grid', drawGrid);
  on('scale', morph);
  on('theme', () => { forgetFills(); drawGrid(); });
}

export { columnOf, x };
