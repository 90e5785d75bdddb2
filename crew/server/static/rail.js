/** The rail: runs and conversations, filtered by words. */

import { $, h, icon, segment, statusIcon } from './dom.js';
import { duration, many, moment, oneLine, short, sum, usd, visible } from './format.js';
import { Rows } from './rows.js';
import { S, emit, on } from './state.js';

const ORDER = { paused: 0, running: 1 };
/** What a run waits for, by the reason of its pause. */
const WANTED = { approval: 'approval', consent: 'approval', question: 'question', input: 'question', in_doubt: 'decision' };
let openRun = (/** @type {string} */ _id) => {}, openConversation = (/** @type {string} */ _id) => {}, loadMore = () => {};

/** @param {{ openRun: (id: string) => void, openConversation: (id: string) => void, loadMore: () => void }} actions */
export function start(actions) {
  ({ openRun, openConversation, loadMore } = actions);
  $('#findicon').append(icon('find'));
  $('#find').addEventListener('input', (/** @type {any} */ e) => { S.find = e.target.value; draw(); });
  $('#runs').addEventListener('click', (/** @type {Event} */ e) => pick(rows.at(e)));
  $('#runs').addEventListener('keydown', (/** @type {KeyboardEvent} */ e) => {
    if (e.key === 'Enter' && rows.nodes.size) pick(rows.items.find(item => item.key === focused) ?? rows.items[0]);
    if (e.key === 'ArrowDown' || e.key === 'ArrowUp') { e.preventDefault(); e.stopPropagation(); move(e.key === 'ArrowDown' ? 1 : -1); }
  });
  $('#runs').addEventListener('scroll', () => { if (rows.span[1] > rows.items.length - 8) loadMore(); }, { passive: true });
  drawKinds();
}

let focused = '';
/** @param {number} by */
function move(by) {
  const at = rows.items.findIndex(item => item.key === (focused || S.conversation || S.runId));
  const next = Math.max(0, Math.min(rows.items.length - 1, at + by));
  focused = rows.items[next]?.key ?? '';
  rows.set(rows.items);
  rows.reveal(next);
}

/** @param {any} item */
function pick(item) {
  if (!item) return;
  focused = '';
  if (item.conversation) openConversation(item.conversation.id);
  else openRun(item.run.run_id);
}

/** @type {Rows<{ key: string, text: string, run?: any, conversation?: any }>} */
const rows = new Rows($('#runs'), item => [item.key, item.key === (S.conversation || S.runId), item.key === focused, item.text].join('|'), (node, item) => {
  node.className = 'row run' + (item.key === focused ? ' focused' : '');
  node.id = 'run-' + item.key;
  node.setAttribute('role', 'option');
  node.setAttribute('aria-selected', String(item.key === (S.conversation || S.runId)));
  node.replaceChildren(...(item.conversation ? conversationRow(item.conversation) : runRow(item.run)));
});

/** A short id whole; a random one by its beginning; any other by its beginning and end. @param {string} id */
const shortId = id => id.length <= 12 ? oneLine(id) : /^[0-9a-f-]{24,}$/i.test(id) ? id.slice(0, 6) : oneLine(`${id.slice(0, 6)}…${id.slice(-4)}`);

/** @param {any} run */
function runRow(run) {
  return [statusIcon(run.status), h('div', { class: 'two' },
    h('div', null, h('b', { class: 'cut' }, oneLine(run.crew)), h('span', { class: 'mono dim cut id', title: oneLine(run.run_id) }, shortId(run.run_id)), h('span', { class: 'grow' }), h('span', null, run.cost ? usd(run.cost) : '')),
    goalLine(run), h('div', null, h('span', { class: 'cut' }, [moment(run.created), run.seconds == null ? '' : duration(run.seconds).replace(/^(\d+ [mhd]) .*/, '$1')].filter(Boolean).join(' · ')), h('span', { class: 'grow' }),
      run.status === 'paused' && run.pauses.length ? h('span', { class: 'badge' }, waits(run.pauses)) : h('span', null, `${short(run.tokens)} tok`)))];
}

/** The start of the input. @param {any} run */
const goalLine = run => run.goal ? h('div', { class: 'goal', title: visible(run.goal) }, h('span', { class: 'cut' }, oneLine(run.goal))) : '';

/** @param {string[]} reasons */
function waits(reasons) {
  const words = new Set(reasons.map(reason => WANTED[reason] ?? 'question'));
  return words.size === 1 ? many(reasons.length, [...words][0]) : `${reasons.length} to answer`;
}

/** @param {any} c */
function conversationRow(c) {
  const newest = c.runs[0];
  return [statusIcon(newest.status), h('div', { class: 'two' },
    h('div', null, h('b', { class: 'cut' }, oneLine(c.id)), h('span', { class: 'grow' }), c.cost ? usd(c.cost) : ''), goalLine(newest),
    h('div', null, h('span', { class: 'cut' }, `${many(c.runs.length, 'turn')} · ${oneLine(newest.crew)} · ${moment(newest.updated)}`)))];
}

function draw() {
  drawKinds();
  const words = S.find.toLowerCase().split(/\s+/).filter(Boolean);
  const hit = (/** @type {any} */ run) => {
    const text = [run.crew, run.run_id, run.status, run.agent, run.goal, run.conversation_id, moment(run.created), JSON.stringify(run.metadata)].join(' ').toLowerCase();
    return words.every(word => text.includes(word));
  };
  const found = S.runs.filter(hit);
  if (S.kind === 'runs') {
    found.sort((a, b) => (ORDER[a.status] ?? 2) - (ORDER[b.status] ?? 2) || b.updated - a.updated);
    rows.set(found.map(run => ({ key: run.run_id, run, text: [run.status, run.cost, run.tokens, run.updated, run.pauses, moment(run.created)].join() })));
  } else {
    /** @type {Map<string, any[]>} */
    const groups = new Map();
    for (const run of found) if (run.conversation_id !== run.run_id) groups.set(run.conversation_id, [...(groups.get(run.conversation_id) ?? []), run]);
    const listed = [...groups].map(([id, runs]) => ({ id, runs, cost: runs.every(r => r.cost != null) ? sum(runs, r => r.cost) : null }));
    rows.set(listed.map(c => ({ key: c.id, conversation: c, text: [c.runs.length, c.cost, c.runs[0].status, c.runs[0].updated].join() })));
  }
}

let drawnKind = '';
function drawKinds() {
  if (drawnKind === S.kind) return; // a button that is drawn again would lose the focus
  drawnKind = S.kind;
  segment($('#kinds'), [['runs', 'Runs'], ['conversations', 'Conversations']], S.kind, kind => {
    S.kind = kind;
    draw();
  });
}

on('runs', draw);
on('view', () => draw());
on('address', () => emit('rail'));
