/** A new run: what it is asked for, of which crew, and in which conversation. */

import * as api from './api.js';
import { $, button, h, icon } from './dom.js';
import { oneLine } from './format.js';
import { S } from './state.js';

let openRun = (/** @type {string} */ _id) => {};

/** @param {(id: string) => void} show */
export function start(show) {
  openRun = show;
}

/** The fields, and the button that starts the run. @param {() => void} [done] @returns {any} */
export function form(done = () => {}) {
  const input = h('textarea', { rows: 4, 'aria-label': 'Input', placeholder: 'What should the crew do?' }), problem = h('p', { class: 'bad', role: 'alert' });
  const crew = S.crews.length > 1 ? h('select', { 'aria-label': 'Crew' }, S.crews.map(name => h('option', { value: name }, oneLine(name)))) : null;
  const conversation = h('input', { 'aria-label': 'Conversation', placeholder: 'Conversation (optional)', spellcheck: 'false' });
  conversation.value = S.conversation;
  if (crew && S.view && /** @type {string[]} */ (S.crews).includes(S.view.run.crew)) crew.value = S.view.run.crew;
  const send = button('btn prime', 'Start the run (Ctrl+Enter)', begin, icon('play'), 'Start');
  async function begin() {
    if (send.disabled) return;
    send.disabled = true;
    problem.textContent = '';
    try {
      const { run_id } = await api.startRun({ input: input.value, ...(crew ? { crew: crew.value } : {}), ...(conversation.value.trim() ? { conversation: conversation.value.trim() } : {}) });
      done();
      openRun(run_id);
    } catch (error) {
      problem.textContent = error instanceof Error ? error.message : String(error);
    }
    send.disabled = false;
  }
  input.addEventListener('keydown', (/** @type {KeyboardEvent} */ e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) begin(); });
  return h('div', { class: 'newrun' }, input, h('div', { class: 'acts' }, crew ?? '', conversation, h('span', { class: 'grow' }), send), problem);
}

export function open() {
  if (!S.rights.run) return;
  const dialog = $('#newrun');
  dialog.replaceChildren(h('div', { class: 'bar' }, h('b', { class: 'grow' }, 'New run'), button('btn flat', 'Close (Esc)', () => dialog.close(), icon('x'))), h('div', { class: 'in' }, form(() => dialog.close())));
  dialog.showModal();
  $('textarea', dialog).focus();
}
