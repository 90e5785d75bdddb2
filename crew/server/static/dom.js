/** Elements. Text of models and tools only ever enters as text nodes: there is no innerHTML on this page. */

const SVG = 'http://www.w3.org/2000/svg';

/** @param {string} query @param {ParentNode} [root] @returns {any} */
export const $ = (query, root = document) => root.querySelector(query);

/**
 * An element with attributes; `on` holds listeners, `css` styles, and null, false and '' children are left out.
 * @param {string} tag @param {Record<string, any> | null} [attributes] @param {...any} children
 * @returns {any}
 */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    if (name === 'on') for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === 'css') for (const [property, x] of Object.entries(value)) element.style.setProperty(property, x);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(3).filter(child => child != null && child !== false && child !== ''));
  return element;
}

/** @param {string} tag @param {Record<string, any>} attributes @param {...(Node | string)} children @returns {any} */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  element.append(...children);
  return element;
}

/** @param {string} name */
export const icon = name => svg('svg', { class: 'i', 'aria-hidden': 'true' }, svg('use', { href: '#i-' + name }));

/** @param {string} cls @param {string} label @param {(event: Event) => void} action @param {...any} children @returns {HTMLButtonElement} */
export const button = (cls, label, action, ...children) =>
  h('button', { class: cls, type: 'button', title: label, 'aria-label': label, on: { click: action } }, ...children);

/**
 * Buttons of which one is pressed.
 * @template T @param {Element} element @param {[T, string, string?][]} options @param {T} now @param {(id: T) => void} pick
 */
export function segment(element, options, now, pick) {
  element.replaceChildren(...options.map(([id, label, title]) =>
    h('button', { type: 'button', title, 'aria-pressed': String(id === now), on: { click: () => pick(id) } }, label)));
}

const STATUS_ICON = { completed: 'check', failed: 'x', stopped: 'cancelled' };
export const STATUS_WORD = {
  running: 'running', paused: 'paused', completed: 'completed', failed: 'failed', cancelled: 'cancelled',
  limit: 'limit reached', interrupted: 'interrupted', stopped: 'stopped',
};

/** The sign of a run's status. @param {string} status */
export function statusIcon(status) {
  const label = STATUS_WORD[status] ?? status;
  const element = svg('svg', { class: 'st i ' + status, viewBox: '0 0 14 14', role: 'img', 'aria-label': label });
  element.append(status === 'running'
    ? svg('circle', { cx: 7, cy: 7, r: 4, fill: 'currentColor', stroke: 'none' })
    : svg('use', { href: '#i-' + (STATUS_ICON[status] ?? status) }));
  return element;
}

let toastTimer = 0;
/** @param {string} text @param {number} [milliseconds] */
export function toast(text, milliseconds = 2600) {
  const element = $('#toast');
  element.textContent = text;
  element.classList.add('on');
  clearTimeout(toastTimer);
  toastTimer = window.setTimeout(() => element.classList.remove('on'), milliseconds);
}

/** @param {string} text */
export function copy(text) {
  navigator.clipboard?.writeText(text).then(() => toast(`Copied ${text.length.toLocaleString('en-US')} characters`),
    () => toast('The browser did not allow copying'));
}

/** A tooltip at the pointer; without text it disappears. @param {{clientX: number, clientY: number}} [event] @param {string} [text] */
export function tip(event, text) {
  const element = $('#tip');
  element.classList.toggle('on', !!text);
  if (!text || !event) return;
  element.textContent = text;
  element.style.left = Math.max(4, Math.min(innerWidth - element.offsetWidth - 8, event.clientX + 14)) + 'px';
  element.style.top = Math.max(4, Math.min(innerHeight - element.offsetHeight - 8, event.clientY + 16)) + 'px';
}

const probe = h('i', { class: 'vh', 'aria-hidden': 'true' });
/** The value of a colour of style.css in the current theme. @param {string} name */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** A canvas at the resolution of the screen. @param {HTMLCanvasElement} canvas */
export function prepare(canvas) {
  const ratio = Math.min(3, devicePixelRatio || 1), width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  context.scale(ratio, ratio);
  return { context, width, height, ratio };
}

export const isPhone = () => innerWidth <= 860;
