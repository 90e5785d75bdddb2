/** The keys of the page, and the list of them. */

import { $, button, h, icon, tip } from './dom.js';
import * as detail from './detail.js';
import * as dock from './dock.js';
import { zoom } from './geometry.js';
import * as newrun from './newrun.js';
import * as requestPane from './request.js';
import { S, emit, go, on, thread } from './state.js';
import * as theme from './theme.js';
import * as timeline from './timeline.js';
import * as whatif from './whatif.js';

const KEYS = [
  ['j k', 'next, previous row of the active pane'], ['Enter', 'open, fold or unfold'], ['h l ← →', 'previous, next request'], ['[ ]', 'previous, next prefix break'],
  ['Home End', 'first, newest request'], ['Space', 'play the requests'], ['1 2 3', 'timeline, history, messages'], ['/', 'filter runs'], ['n', 'new run'], ['s', 'search the messages'],
  ['g', 'messages or tokens as row height'], ['+ − 0', 'fewer, more, all requests in view'], ['f', 'fold what was not sent'], ['z', 'collapse or expand the timeline'],
  ['b', 'next branch'], ['y', 'copy the message'], ['a e x', 'go to approve; edit; refuse'], ['w', 'what if'], ['t', 'light or dark'], ['Esc', 'close'], ['?', 'this list'],
];
const PANES = { timeline: '#tree', history: '#grid canvas', request: '#msgs' };

/** @param {number} by */
const turn = by => () => go({ n: S.n + by, span: null });

/** @param {number} by */
function jump(by) {
  const Q = thread().Q, hit = by > 0 ? Q.find(q => q.n > S.n && q.broke) : Q.slice(0, S.n - 1).reverse().find(q => q.broke);
  if (hit) go({ n: hit.n, span: null });
}

/** @param {number} by */
const step = by => () => S.pane === 'timeline' ? timeline.step(by) : requestPane.step(by);

/** @param {string} name */
function pane(name) {
  S.pane = name;
  emit('pane');
  emit('tab', name);
  $(PANES[name]).focus({ preventScroll: true });
}

let playing = 0;
export function play() {
  clearInterval(playing);
  if (playing) playing = 0;
  else {
    if (S.n === thread().Q.length) go({ n: 1, span: null });
    playing = window.setInterval(() => { if (S.view && S.n < thread().Q.length) go({ n: S.n + 1, span: null }); else play(); }, 160);
  }
  $('#play').replaceChildren(icon(playing ? 'paused' : 'play'));
}

/** @param {number} factor */
const resize = factor => () => { if (factor) zoom(factor); else S.zoom = null; emit('layout'); };

function enter() {
  if (S.pane === 'timeline' && timeline.toggleSelected()) return;
  if (S.pos != null) document.body.dataset.sheet = '1';
}

function escape() {
  tip();
  if (dock.leave()) return;
  if (document.body.dataset.rail !== undefined) delete document.body.dataset.rail;
  else if ($('#words').value) { $('#words').value = ''; $('#words').dispatchEvent(new Event('input')); }
  else if (S.pos != null) detail.close();
}

const ACTIONS = {
  j: step(1), k: step(-1), ArrowDown: step(1), ArrowUp: step(-1), h: turn(-1), l: turn(1), ArrowLeft: turn(-1), ArrowRight: turn(1),
  Home: () => go({ n: 1, span: null }), End: () => go({ n: thread().Q.length, pos: null, span: null }), '[': () => jump(-1), ']': () => jump(1), ' ': play,
  1: () => pane('timeline'), 2: () => pane('history'), 3: () => pane('request'), g: () => { S.scale = 1 - S.scale; emit('scale'); },
  '+': resize(0.5), '=': resize(0.5), '-': resize(2), 0: resize(0), f: requestPane.toggleFold, z: timeline.toggleAll, y: detail.copySelected,
  b: () => go({ thread: (S.thread + 1) % (S.view?.threads.length ?? 1), span: null }), a: () => dock.press('a'), e: () => dock.press('e'), x: () => dock.press('x'),
  w: whatif.open, Enter: enter, s: () => $('#words').focus(),
};
const ALWAYS = { n: newrun.open, t: theme.toggle, '/': () => { document.body.setAttribute('data-rail', ''); $('#find').focus(); }, '?': () => $('#help').showModal() };

/** @param {KeyboardEvent} e */
function onKey(e) {
  const target = /** @type {any} */ (e.target);
  if (e.metaKey || e.ctrlKey || e.altKey || document.querySelector('dialog[open]')) return;
  if (target.matches('input[type=search], textarea, .args input, select')) {
    if (e.key === 'Escape') { target.blur(); escape(); }
    return;
  }
  if (target.matches('button, a') && (e.key === 'Enter' || e.key === ' ')) return;
  if (target.matches('#runs') && (e.key === 'Enter' || e.key.startsWith('Arrow'))) return;
  const act = e.key === 'Escape' ? escape : ALWAYS[e.key] ?? (S.view ? ACTIONS[e.key] : undefined);
  if (!act) return;
  e.preventDefault();
  act();
}

export function start() {
  addEventListener('keydown', onKey);
  $('#play').append(icon('play'));
  $('#play').addEventListener('click', play);
  $('#helpbtn').addEventListener('click', () => $('#help').showModal());
  $('#help').append(h('div', { class: 'bar' }, h('b', { class: 'grow' }, 'Keyboard'), button('btn flat', 'Close', () => $('#help').close(), icon('x'))),
    h('div', { class: 'in' }, KEYS.flatMap(([keys, text]) => [h('span', null, keys.split(' ').flatMap(key => [h('kbd', null, key), ' '])), h('span', null, text)])));
  on('pane', () => { for (const name in PANES) $('#' + name).toggleAttribute('data-active', S.pane === name); });
}
