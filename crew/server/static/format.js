/** Numbers, times and texts as people read them. */

const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

/** @param {number} n */
export const int = n => grouped.format(n);

/** A count of tokens in at most four characters. @param {number} n */
export function short(n) {
  if (n < 1000) return String(Math.round(n));
  if (n < 1e4) return (n / 1e3).toFixed(n % 1000 ? 1 : 0) + 'k';
  if (n < 1e6) return Math.round(n / 1e3) + 'k';
  return (n / 1e6).toFixed(2) + 'M';
}

/** Dollars; a price that is not known is a dash. @param {number | null | undefined} n */
export function usd(n) {
  if (n == null) return '–';
  const value = Math.abs(n);
  return (n < 0 ? '−$' : '$') + value.toFixed(value === 0 ? 2 : value < 0.0995 ? 4 : value < 9.995 ? 3 : 2);
}

/** @param {number} s */
export function duration(s) {
  if (s < 0.0005) return '0 ms';
  if (s < 1) return Math.round(s * 1e3) + ' ms';
  if (s < 60) return s.toFixed(1) + ' s';
  if (s < 3600) return `${Math.floor(s / 60)} m ${String(Math.floor(s % 60)).padStart(2, '0')} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor(s % 3600 / 60)).padStart(2, '0')} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

/** A position on the time axis. @param {number} s */
export const clock = s => s < 3600
  ? `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, '0')}`
  : `${Math.floor(s / 3600)}:${String(Math.floor(s % 3600 / 60)).padStart(2, '0')}:${String(Math.floor(s % 60)).padStart(2, '0')}`;

/** @param {number} x */
export const percent = x => Number.isFinite(x) ? Math.round(x * 100) + ' %' : '0 %';

/** @param {number} n @param {string} word @param {string} [plural] */
export const many = (n, word, plural) => `${int(n)} ${n === 1 ? word : plural ?? word + 's'}`;

/** The time of day today, else the weekday or the date. @param {number} seconds since 1970 */
export function moment(seconds) {
  const at = new Date(seconds * 1e3), days = (Date.now() - at.getTime()) / 864e5;
  const time = at.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  if (days < 1 && at.getDate() === new Date().getDate()) return time;
  if (days < 6) return `${at.toLocaleDateString('en-GB', { weekday: 'short' })} ${time}`;
  return at.toLocaleDateString('en-GB', { day: 'numeric', month: 'short', year: days > 300 ? 'numeric' : undefined });
}

/**
 * Text of a model or tool for one line: white space joined, control and direction characters shown as symbols.
 * @param {string | null | undefined} text
 */
export const oneLine = text => visible((text ?? '').slice(0, 220)).replace(/\s+/g, ' ');

/**
 * Replace characters that a terminal or the text direction algorithm would obey by visible ones.
 * @param {string} text
 */
export function visible(text) {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, c => String.fromCodePoint(0x2400 + c.charCodeAt(0)))
    .replace(/\u007f/g, '\u2421')
    .replace(/[\u0080-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g,
      c => `\u27e8U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}\u27e9`);
}

/** The value of a JSON text, if it is an object or a list. @param {string} text */
export function parseJson(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === 'object' ? value : null;
  } catch {
    return null;
  }
}

/** The values of JSON arguments on one line. @param {string | undefined} text */
export function plainArguments(text) {
  const value = parseJson(text ?? '');
  if (!value) return oneLine((text ?? '').replace(/[{}"]/g, ''));
  return oneLine(Object.values(value).map(x => typeof x === 'string' ? x : JSON.stringify(x)).join(' '));
}

/**
 * The progress that a tool reports, as a text and the part that is done, between 0 and 1; by the rules of the terminal.
 * @param {any} data @returns {{ text: string, part: number | null }}
 */
export function progressOf(data) {
  if (typeof data === 'string') return { text: oneLine(data), part: null };
  if (typeof data === 'number' && data >= 0 && data <= 1) return { text: '', part: data };
  const known = data && typeof data === 'object' && !Array.isArray(data) ? data : {}, { total } = known;
  const text = [known.message, known.text, known.status].find(x => typeof x === 'string'), done = [known.progress, known.done, known.current].find(x => typeof x === 'number');
  if (text === undefined && done === undefined) return { text: oneLine(JSON.stringify(data)), part: null };
  const part = done !== undefined && total > 0 ? Math.max(0, Math.min(1, done / total)) : null;
  return { text: oneLine([text, done === undefined ? '' : total == null ? String(done) : `${done}/${total}`].filter(Boolean).join(': ')), part };
}

/** @template T @param {T[]} items @param {(item: T) => number} value */
export const sum = (items, value) => items.reduce((total, item) => total + value(item), 0);
