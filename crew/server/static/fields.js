/** Fields of a form that edits arguments: plain text, numbers and switches by type; JSON only for objects and lists. */

import { $, h } from './dom.js';
import { oneLine } from './format.js';

/** @typedef {{ value: any } | { problem: string }} Reading */

const INTEGER = /^[+-]?\d+$/, NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
/** What each type accepts, in words. */
const ACCEPTED = {
  integer: 'a whole number, such as 90', number: 'a number, such as 2.5', boolean: 'true or false', null: 'nothing (leave it empty)',
  object: 'a JSON object, such as {"name": "Anna"}', array: 'a JSON list, such as [1, 2]', any: 'a JSON value',
};

/** @param {any} value */
const typeOf = value => value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value === 'number' ? Number.isInteger(value) ? 'integer' : 'number' : typeof value;

/**
 * The types that an argument accepts: those of the tool's schema, else that of its value. The type of the value comes first.
 * @param {any} value @param {string[] | undefined} schema
 */
export function typesOf(value, schema) {
  const now = typeOf(value);
  if (!schema?.length) return now === 'null' ? ['any'] : now === 'integer' ? ['number'] : [now];
  return [...schema].sort((a, b) => Number(b === now) - Number(a === now) || Number(a === 'string') - Number(b === 'string'));
}

/** The value that a text stands for. @param {string} text @param {string[]} types @returns {Reading} */
export function read(text, types) {
  const word = text.trim();
  if (types.includes('null') && !word) return { value: null };
  for (const type of types) {
    if (type === 'string') return { value: text };
    const found = readAs(type, word);
    if (found) return found;
  }
  return { problem: `Enter ${types.filter(type => ACCEPTED[type]).map(type => ACCEPTED[type]).join(', or ')}.` };
}

/** @param {string} type @param {string} word @returns {Reading | null} null: the word is not of this type */
function readAs(type, word) {
  if (type === 'boolean') return word === 'true' || word === 'false' ? { value: word === 'true' } : null;
  if (type === 'integer' || type === 'number') {
    if (!(type === 'integer' ? INTEGER : NUMBER).test(word)) return null;
    const value = Number(word);
    if (!Number.isFinite(value) || (INTEGER.test(word) && !Number.isSafeInteger(value))) return { problem: 'This number is too large to be sent exactly. Enter at most 9007199254740991.' };
    return { value };
  }
  try {
    const value = JSON.parse(word);
    return type === 'any' || typeOf(value) === type ? { value } : null;
  } catch {
    return null;
  }
}

/** A field for an argument, and below it the place for its problem. @param {string} name @param {any} value @param {string[] | undefined} schema @param {number} number */
export function field(name, value, schema, number) {
  const types = typesOf(value, schema), text = value === null ? types[0] === 'any' ? 'null' : '' : typeof value === 'string' && types[0] === 'string' ? value : JSON.stringify(value);
  const isSwitch = typeof value === 'boolean' && types.every(type => type === 'boolean' || type === 'null');
  const input = isSwitch ? h('select', {}, (types.includes('null') ? ['true', 'false', ''] : ['true', 'false']).map(x => h('option', { value: x }, x || 'nothing')))
    : text.length > 40 || text.includes('\n') ? h('textarea', { rows: Math.min(8, Math.ceil(text.length / 40) + text.split('\n').length - 1) }) : h('input', {});
  const problem = h('p', { class: 'problem', id: `problem-${number}`, role: 'alert' });
  for (const [key, x] of Object.entries({ 'data-argument': name, 'aria-label': oneLine(name), 'aria-describedby': problem.id, spellcheck: 'false' })) input.setAttribute(key, x);
  if (types.includes('null') && !isSwitch) input.placeholder = 'nothing';
  input.value = text;
  const before = input.value; // a browser may change line ends
  // A field that nobody changed sends its argument as it was.
  input.reading = () => input.value === before ? { value } : read(input.value, types);
  input.addEventListener('input', () => { input.classList.toggle('changed', input.value !== before); if (input.matches('[aria-invalid]')) check(input); });
  input.addEventListener('change', () => check(input));
  return [input, problem];
}

/** @param {any} input @param {string} text */
export function report(input, text) {
  input.toggleAttribute('aria-invalid', !!text);
  if (text) input.setAttribute('aria-invalid', 'true');
  $(`#${input.getAttribute('aria-describedby')}`).textContent = text;
}

/** @param {any} input */
function check(input) {
  report(input, input.reading().problem ?? '');
}

/** The arguments in all fields of the form; null if one of them is invalid, which then has the focus. @param {ParentNode} form */
export function values(form) {
  const inputs = [...form.querySelectorAll('[data-argument]')].map(x => /** @type {any} */ (x));
  inputs.forEach(check);
  const wrong = inputs.find(x => x.matches('[aria-invalid]'));
  wrong?.focus();
  return wrong ? null : Object.fromEntries(inputs.map(x => [x.dataset.argument, x.reading().value]));
}

/**
 * Show what the server refused below the fields that it names: `sizes.0: Input should be a valid integer`.
 * @param {ParentNode} form @param {string} text @returns {string} the rest, which names no field
 */
export function refuse(form, text) {
  const rest = [], inputs = [...form.querySelectorAll('[data-argument]')].map(x => /** @type {any} */ (x));
  for (const line of text.split(/\n|; |(?<=these arguments\.) /)) {
    const input = inputs.find(x => line.startsWith(x.dataset.argument) && '.:['.includes(line[x.dataset.argument.length] ?? ' '));
    if (input) report(input, oneLine(line)); else rest.push(line);
  }
  return rest.join('; ');
}
