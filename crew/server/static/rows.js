/** A virtual list: fixed row heights, rows by key, and only those in view are in the document. */

import { h } from './dom.js';

const BEYOND = 6;

/** @template {{ key: any }} Item */
export class Rows {
  /**
   * `signature` names everything that `draw` shows of an item: a row is drawn again only if it changed.
   * @param {HTMLElement} element @param {(item: Item) => string} signature @param {(node: any, item: Item) => void} draw
   */
  constructor(element, signature, draw) {
    this.element = element;
    this.signature = signature;
    this.draw = draw;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<any, any>} */
    this.nodes = new Map();
    this.top = 0;
    this.height = 0;
    this.row = 0;
    /** @type {(() => void) | null} */
    this.before = null;
    /** @type {((first: number, end: number) => void) | null} */
    this.after = null;
    this.box = element.appendChild(h('div', { role: 'presentation' }));
    // Painting never asks for the layout: scroll position and size are noted as they change.
    element.addEventListener('scroll', () => { this.top = element.scrollTop; element.classList.add('still'); this.paint(); }, { passive: true });
    new ResizeObserver(() => { this.measure(); this.paint(); }).observe(element);
    this.measure();
  }

  measure() {
    this.height = this.element.clientHeight;
    this.row = parseFloat(getComputedStyle(this.element).getPropertyValue('--row')) || 24;
    this.resize();
  }

  resize() {
    this.box.style.height = this.items.length * this.row + 'px';
    this.top = Math.max(0, Math.min(this.top, this.items.length * this.row - this.height));
  }

  /** @param {Item[]} items */
  set(items) {
    this.element.classList.remove('still');
    this.items = items;
    this.resize();
    this.paint();
  }

  /** The first row in view, and the one after the last. */
  get span() {
    const first = Math.floor(this.top / this.row), end = Math.ceil((this.top + this.height) / this.row);
    return [Math.max(0, Math.min(first, this.items.length - 1)), Math.min(this.items.length, end)];
  }

  paint() {
    this.before?.();
    const [first, end] = this.span, keep = new Map();
    for (let i = Math.max(0, first - BEYOND); i < Math.min(this.items.length, end + BEYOND); i++) {
      const item = this.items[i];
      let node = this.nodes.get(item.key);
      if (!node) this.box.append(node = h('div', { class: 'row' }));
      const signature = this.signature(item);
      node.item = item;
      if (node.signature !== signature) {
        this.draw(node, item);
        node.signature = signature;
      }
      node.style.transform = `translateY(${i * this.row}px)`;
      node.setAttribute('aria-posinset', i + 1);
      node.setAttribute('aria-setsize', this.items.length);
      keep.set(item.key, node);
    }
    for (const [key, node] of this.nodes) {
      if (keep.has(key)) continue;
      if (node.contains(document.activeElement)) this.element.focus({ preventScroll: true }); // focus stays in the list
      node.remove();
    }
    this.nodes = keep;
    this.after?.(first, end);
  }

  /** @param {number} y */
  scroll(y) {
    y = Math.max(0, Math.min(y, this.items.length * this.row - this.height));
    if (y === this.top) return;
    this.top = y;
    this.paint();
    this.element.scrollTop = y;
  }

  /** @param {number} i */
  reveal(i) {
    const y = i * this.row;
    if (y < this.top + this.row) this.scroll(y - this.height * 0.3);
    else if (y > this.top + this.height - 2 * this.row) this.scroll(y - this.height * 0.6);
    const id = this.nodes.get(this.items[i]?.key)?.id;
    if (id) this.element.setAttribute('aria-activedescendant', id);
  }

  /** The item of the row under an event. @param {Event} event @returns {Item | undefined} */
  at(event) {
    return /** @type {any} */ (event.target)?.closest?.('.row')?.item;
  }
}
