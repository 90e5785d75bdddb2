/** The x axis that tokens, cost, scrubber and matrix share: requests, several in a column where there are many. */

import { $ } from './dom.js';
import { S, thread } from './state.js';

/** @typedef {import('./model.js').Request} Request */
/** @typedef {{ from: number, to: number, q: Request }} Column the requests from..to (numbers), and the one that is drawn */

const NARROWEST = 2;
/** The widest column: few requests get more room, so that a short run does not look lost. @param {number} columns */
const widest = columns => columns <= 4 ? 72 : columns <= 10 ? 44 : 26;

export const G = {
  left: 38, right: 12, width: 0, bw: 0, free: 0, height: 0,
  /** @type {Column[]} */ columns: [],
  /** @type {number[]} tops of the rows between 0 and 1 */ tops: [],
};

/** Fit the requests in view into columns; of several, the one with the most fresh tokens is drawn, so that breaks stay visible. */
export function layout() {
  const space = $('#plots').clientWidth - G.left - G.right, all = thread().Q, [from, to] = S.zoom ?? [1, all.length];
  const Q = all.slice(from - 1, to), most = Math.max(1, Math.floor(space / NARROWEST)), per = Math.ceil(Q.length / most) || 1;
  G.columns = [];
  for (let i = 0; i < Q.length; i += per) {
    const group = Q.slice(i, i + per), q = group.reduce((worst, x) => x.in - x.front > worst.in - worst.front ? x : worst);
    G.columns.push({ from: group[0].n, to: group[group.length - 1].n, q });
  }
  G.bw = Math.min(widest(G.columns.length), space / Math.max(1, G.columns.length));
  G.width = G.bw * G.columns.length;
  G.free = space - G.width;
  return space > 0 && Q.length > 0;
}

/** The column of a request. @param {number} n */
export function columnOf(n) {
  const first = G.columns[0];
  if (!first) return 0;
  return Math.max(0, Math.min(G.columns.length - 1, Math.floor((n - first.from) / (first.to - first.from + 1))));
}

/** The middle of a column. @param {number} i */
export const x = i => G.left + (i + 0.5) * G.bw;

/** @param {number} n */
export const xOf = n => x(columnOf(n));

/** The column under the pointer. @param {{ clientX: number }} event */
export const columnAt = event => Math.max(0, Math.min(G.columns.length - 1, Math.floor((event.clientX - $('#plots').getBoundingClientRect().left - G.left) / G.bw)));

/** The row under the pointer: -1 is instructions and tools. @param {{ clientY: number }} event */
export function rowAt(event) {
  const y = (event.clientY - $('#grid').getBoundingClientRect().top) / G.height;
  let low = 0, high = G.tops.length - 1;
  while (low < high) { const mid = (low + high) >> 1; if (G.tops[mid] > y) high = mid; else low = mid + 1; }
  return low - 2;
}

/** Whether a request is in view. @param {number} n */
export const inView = n => !S.zoom || (n >= S.zoom[0] && n <= S.zoom[1]);

/** Show fewer or more requests around the selected one. @param {number} factor */
export function zoom(factor) {
  const all = thread().Q.length, [from, to] = S.zoom ?? [1, all], size = Math.max(12, Math.round((to - from + 1) * factor));
  if (size >= all) { S.zoom = null; return; }
  const start = Math.max(1, Math.min(all - size + 1, Math.round(S.n - size / 2)));
  S.zoom = [start, start + size - 1];
}

/** Move the window so that the selected request is in it. @returns {boolean} whether it moved */
export function follow() {
  if (!S.zoom || inView(S.n)) return false;
  zoom(1);
  return true;
}
