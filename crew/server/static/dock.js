/** What a run waits for: calls to approve, calls in doubt, questions; and what a run failed with. */

import * as api from './api.js';
import { $, button, copy, h, icon, isPhone, toast } from './dom.js';
import { field, refuse, values } from './fields.js';
import { duration, oneLine, visible } from './format.js';
import { resume } from './header.js';
import { S, emit, go, hasCrew, on } from './state.js';

const RETRIES = 8;
/** Errors of a run that is being resumed at this moment, for another answer. */
const IS_RESUMING = new Set(['run_active', 'run_conflict']);
/** Pauses whose text is the question. */
const ASKS = new Set(['input', 'question', 'consent']);
let refresh = () => {}, busy = false;
/** @type {Set<string>} the arguments of the shown call that were visible */
let seen = new Set();
let shown = '', drawn = '', problem = { pause: '', text: '' };
/** @type {Map<string, string>} what was written and not sent, by pause and mode */
const drafts = new Map();

/** @param {() => void} reload */
export function start(reload) {
  refresh = reload;
  on('view', draw);
  on('runs', () => { if (S.view) drawAsk(); });
  on('time', () => { const place = $('#dock .since'); if (place && S.view) place.textContent = since(S.view); });
  on('pause', key => {
    const at = pauses().findIndex(p => p.id === key);
    if (at >= 0) { S.pause = at; S.mode = ''; draw(); }
  });
}

/** What a pause is about. @param {any} pause */
const subject = pause => oneLine(pause.name ?? pause.agent);
/** @param {any} pause @param {string} text */
const answered = (pause, text) => `Answered ${subject(pause)}: ${text.length > 60 ? oneLine(text.slice(0, 60)) + '…' : oneLine(text)}`;

/** @returns {any[]} */
const pauses = () => S.view?.run.status === 'paused' || S.view?.run.pauses.length ? S.view?.run.pauses ?? [] : [];
const mayAnswer = () => S.rights.approve && !S.rights.read_only && hasCrew();
/** Why this page can't answer. */
const whyNot = () => S.rights.read_only ? ['Read-only. Answer with ', h('code', { class: 'mono' }, `crew resume CREW.py ${S.view?.run.id} --store FILE`)] : hasCrew() ? 'This token may not answer pauses.' : `This service has no crew ${oneLine(S.view?.run.crew)}: answer where it runs.`;

function draw() {
  const dock = $('#dock'), view = S.view;
  const typing = dock.contains(document.activeElement) && /^(TEXTAREA|INPUT|SELECT)$/.test(document.activeElement?.tagName ?? '');
  const open = pauses(), pause = open[S.pause % Math.max(1, open.length)];
  const editing = S.mode === 'edit' && drawn === 'edit' && !!dock.querySelector('[data-argument]');
  if ((typing || editing) && pause && pause.id === shown && drawn === S.mode) return; // new events do not disturb what a person writes
  drawAsk();
  if (view?.run.error && view.run.status !== 'running') return drawFailure(dock, view.run);
  if (!pause || !view || (isPhone() && !document.body.dataset.approve)) {
    dock.className = '';
    return dock.replaceChildren();
  }
  if (pause.id !== shown) { shown = pause.id; seen = new Set(); S.mode = ''; }
  dock.className = 'dock';
  if (drawn !== S.mode) problem = { pause: '', text: '' };
  drawn = S.mode;
  dock.replaceChildren(heading(open), ...body(pause), h('p', { class: 'problem', role: 'alert' }, problem.pause === pause.id ? visible(problem.text) : ''), actionsOf(pause));
  watchArguments(pause);
}

/** @param {HTMLElement} dock @param {any} run */
function drawFailure(dock, run) {
  dock.className = 'dock fail';
  const text = `${run.error.type || 'Error'}: ${run.error.text}`;
  dock.replaceChildren(h('h3', null, icon('failed'), oneLine(run.error.type || 'The run failed')), h('p', { class: 'error' }, visible(run.error.text)),
    h('p', { class: 'dim after' }, 'The run is stored. Resuming it repeats nothing whose result was committed.'),
    h('div', { class: 'acts' }, S.rights.approve && hasCrew() ? button('btn prime', 'Resume', () => resume(run.id), icon('retry'), 'Resume') : '', button('btn', 'Copy the error', () => copy(text), icon('copy'), 'Copy error')));
}

/** @param {any[]} open */
function heading(open) {
  const pause = open[S.pause % open.length], words = { approval: 'Waiting for approval', input: 'Waiting for an answer', question: 'Waiting for an answer', in_doubt: 'It may have happened', consent: pause.checked ? 'Waiting for approval' : 'Waiting for consent' };
  return h('h3', null, icon(pause.reason === 'in_doubt' ? 'doubt' : 'paused'), words[pause.reason], h('span', { class: 'grow' }),
    open.length > 1 ? [h('span', { class: 'dim' }, `${S.pause % open.length + 1} of ${open.length}`), button('btn flat', 'Next question', () => { S.pause++; S.mode = ''; draw(); }, icon('chev'))] : null,
    isPhone() ? button('btn flat', 'Close', () => { delete document.body.dataset.approve; draw(); }, icon('x')) : '');
}

/** @param {any} pause */
function body(pause) {
  const view = /** @type {import('./model.js').View} */ (S.view), number = view.threads.findIndex(t => t.path === pause.path), t = view.threads[Math.max(0, number)];
  const said = t?.M.slice().reverse().find(m => pause.call ? m.calls?.some(c => c.id === pause.call) : m.role === 'assistant');
  const facts = [pause.name ? oneLine(pause.agent) : '', pause.effect ? `effect: ${pause.effect}` : '', ].filter(Boolean).map(x => x + ' · ');
  const show = () => go({ thread: number, n: t.Q.find(q => q.reply === said?.pos)?.n ?? S.n, pos: said?.pos ?? null }, { reveal: true });
  return [h('div', { class: 'who' }, h('b', null, oneLine(pause.name ?? pause.agent)), h('span', { class: 'dim' }, ...facts, h('span', { class: 'since' }, since(view)))),
    said?.text ? h('button', { class: 'said', type: 'button', title: 'Show the request', on: { click: show } }, oneLine(said.text)) : '',
    hasQuestion(pause) ? h('p', { class: 'question' }, visible(pause.text)) : '',
    pause.checked ? h('pre', { class: 'raw' }, visible(pause.checked)) : '',
    pause.name && (!ASKS.has(pause.reason) || Object.keys(pause.arguments ?? {}).length) ? argumentList(pause) : '',
    pause.choices?.length && !mayAnswer() ? h('ul', { class: 'choices', 'aria-label': 'Choices' }, pause.choices.map((/** @type {string} */ choice) => h('li', null, oneLine(choice)))) : ''];
}

/** @param {import('./model.js').View} view */
const since = view => view.sinceUpdate() < 1 ? 'just now' : `${duration(view.sinceUpdate())} ago`;

/** The words of a call that waits for approval matter only if a guardrail wrote them. @param {any} pause */
const hasQuestion = pause => ASKS.has(pause.reason) || pause.reason === 'in_doubt' || (pause.reason === 'approval' && pause.text !== `May ${pause.agent} call ${pause.name}?`);

/** @param {any} pause */
function argumentList(pause) {
  if (!pause.arguments) return h('pre', { class: 'raw' }, visible(pause.raw ?? ''));
  const edit = S.mode === 'edit', entries = Object.entries(pause.arguments);
  if (!entries.length) return h('p', { class: 'dim after' }, 'It has no arguments.');
  return h('dl', { class: 'args' }, entries.map(([name, value], i) => [h('dt', null, oneLine(name)), h('dd', { 'data-name': name }, edit ? field(name, value, pause.types?.[name], i) : visible(JSON.stringify(value)))]));
}

/** A button that opens a form. @param {string} cls @param {string} label @param {() => void} action @param {string} word */
function opening(cls, label, action, word) {
  const made = button(cls, label, action, word);
  made.dataset.opens = '1';
  return made;
}

/** The actions of a pause. @param {any} pause */
function actionsOf(pause) {
  if (!mayAnswer()) return h('div', { class: 'acts' }, h('span', { class: 'dim' }, whyNot()));
  const back = button('btn', 'Back', () => { S.mode = ''; draw(); }, 'Back');
  if (pause.choices?.length) return h('div', { class: 'acts' }, pause.choices.map((/** @type {string} */ choice) => button('btn', choice, () => send(pause, choice, answered(pause, choice)), oneLine(choice))));
  if (pause.reason === 'input' || pause.reason === 'question') return writing(pause, 'Your answer', 'Send', text => text, text => answered(pause, text));
  if (pause.reason === 'in_doubt') {
    if (S.mode === 'done') return writing(pause, 'The result that the call had', 'Use this result', text => ({ done: text }), () => `Result of ${subject(pause)} given`, back);
    return h('div', { class: 'acts' },
      opening('btn prime', 'It happened: enter its result (a)', () => { S.mode = 'done'; draw(); $('.dock textarea')?.focus(); }, 'It happened…'),
      button('btn', 'Run the call again (e)', () => send(pause, 'run again', `Running ${subject(pause)} again`), 'Run again'),
      button('btn bad', 'Skip the call (x)', () => send(pause, 'skip', `Skipped ${subject(pause)}`), 'Skip'));
  }
  if (S.mode === 'refuse') return writing(pause, 'Why not? The model reads this.', 'Refuse', text => !text.trim() ? false : pause.reason === 'approval' ? { refuse: { reason: text } } : text, () => `Refused ${subject(pause)}`, back);
  if (S.mode === 'edit') return h('div', { class: 'acts' }, button('btn prime', 'Approve with these arguments', () => approveEdited(pause), 'Approve with changes'), back);
  const all = pause.reason === 'approval' ? Object.keys(pause.arguments ?? {}) : [], missing = all.filter(name => !seen.has(name)).length;
  const approve = button('btn prime', missing ? 'Scroll down: some arguments were not visible yet' : 'Approve (a)', () => send(pause, true, `Approved ${subject(pause)}`), 'Approve');
  approve.disabled = missing > 0 || busy;
  approve.id = 'approve';
  return h('div', { class: 'acts' }, approve,
    all.length ? opening('btn', 'Edit arguments (e)', () => { S.mode = 'edit'; draw(); $('[data-argument]')?.focus(); }, 'Edit') : '',
    opening('btn bad', 'Refuse with a reason (x)', () => { S.mode = 'refuse'; draw(); $('.dock textarea')?.focus(); }, 'Refuse…'),
    missing ? h('span', { class: 'dim' }, `${missing} more below`) : '');
}

/** @param {any} pause @param {string} hint @param {string} word @param {(text: string) => any} value @param {(text: string) => string} done @param {HTMLElement} [back] */
function writing(pause, hint, word, value, done, back) {
  const area = h('textarea', { placeholder: hint, 'aria-label': hint }), draft = `${pause.id} ${S.mode}`;
  area.value = drafts.get(draft) ?? '';
  area.addEventListener('input', () => drafts.set(draft, area.value));
  area.addEventListener('keydown', (/** @type {KeyboardEvent} */ e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) send(pause, value(area.value), done(area.value)); });
  return h('div', { class: 'acts write' }, area, button('btn prime', word, () => send(pause, value(area.value), done(area.value)), word), back ?? '');
}

/** @param {any} pause */
function approveEdited(pause) {
  const found = values($('#dock'));
  if (found) send(pause, { approve: { arguments: found } }, `Approved ${subject(pause)} with changes`);
}

/** Answer a pause. A run that is being resumed for another answer is asked again. @param {any} pause @param {any} value @param {string} done */
async function send(pause, value, done) {
  const id = S.view?.run.id;
  if (busy || !id) return;
  busy = true;
  problem = { pause: '', text: '' };
  for (const b of document.querySelectorAll('.dock button')) /** @type {any} */ (b).disabled = true;
  try {
    for (let attempt = 0; ; attempt++) {
      try {
        await api.answer(id, { [pause.id]: value });
        break;
      } catch (error) {
        if (!(error instanceof api.ApiError) || !IS_RESUMING.has(error.kind) || attempt === RETRIES) throw error;
        await new Promise(resolve => setTimeout(resolve, 250));
      }
    }
    S.mode = '';
    S.pause = 0;
    drafts.clear();
    toast(done);
    /** @type {any} */ (document.activeElement)?.blur?.();
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    if (error instanceof api.ApiError && error.status === 422) drawProblem(text); else toast(text, 6000);
  }
  busy = false;
  for (const b of document.querySelectorAll('.dock button')) /** @type {any} */ (b).disabled = false;
  draw();
  refresh();
}

/** An answer that the server refused: below the arguments that it names, else above the actions. @param {string} text */
function drawProblem(text) {
  problem = { pause: shown, text: refuse($('#dock'), text.replace(/^The answer to '[^']*': /, '')) };
  $('#dock > .problem')?.replaceChildren(visible(problem.text));
}

/** Approving is possible once every argument was visible. @param {any} pause */
function watchArguments(pause) {
  const cells = [...document.querySelectorAll('#dock .args dd')], wanted = Object.keys(pause.arguments ?? {}).length;
  if (S.mode || pause.reason !== 'approval' || seen.size >= wanted) return;
  const observer = new IntersectionObserver(entries => {
    const before = seen.size;
    for (const entry of entries) {
      // A value that is longer than the dock counts once its end was visible.
      const bounds = entry.rootBounds, whole = entry.intersectionRatio > 0.9 || (bounds && entry.isIntersecting && entry.boundingClientRect.bottom <= bounds.bottom + 2);
      if (whole) seen.add(/** @type {any} */ (entry.target).dataset.name);
    }
    if (seen.size === before || pause.id !== shown || S.mode) return;
    $('#dock .acts')?.replaceWith(actionsOf(pause));
    if (seen.size >= wanted) observer.disconnect();
  }, { root: $('#dock'), threshold: [0, 0.25, 0.5, 0.75, 0.95, 1] });
  for (const cell of cells) observer.observe(cell);
}

/** On a phone, a line that opens the question. */
function drawAsk() {
  const open = pauses(), ask = $('#ask'), rest = open.length > 1 ? ` and ${open.length - 1} more wait` : ' waits';
  ask.hidden = !open.length;
  if (open.length) ask.replaceChildren(icon('paused'), h('span', { class: 'grow cut' }, h('b', null, oneLine(open[0].name ?? open[0].agent)), rest), button('btn', 'Review', () => { document.body.dataset.approve = '1'; draw(); }, 'Review'));
  emit('tabs');
}

/** Move the focus to the action of a key; only forms open at once, so that no key alone runs or skips a call. @param {'a' | 'e' | 'x'} key */
export function press(key) {
  const target = /** @type {any} */ (document.querySelector(`.dock .btn[title$="(${key})"]`)) ?? (key === 'a' ? $('#approve') : null);
  if (!target) return;
  if (key !== 'a' && target.dataset.opens) return target.click();
  if (target.disabled) { const next = [...document.querySelectorAll('#dock .args dd')].find(x => !seen.has(/** @type {any} */ (x).dataset.name)); next?.scrollIntoView({ block: 'end' }); }
  else target.focus();
}

/** Leave the edit or refusal. @returns {boolean} whether there was one */
export function leave() {
  if (!S.mode) return false;
  S.mode = '';
  /** @type {any} */ (document.activeElement)?.blur?.();
  draw();
  return true;
}
