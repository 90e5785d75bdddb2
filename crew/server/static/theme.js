/** Light and dark: the system's choice, or the one that was made here. */

import { emit } from './state.js';

const KEY = 'crew-theme', system = matchMedia('(prefers-color-scheme: dark)');

export const current = () => document.documentElement.dataset.theme || (system.matches ? 'dark' : 'light');

/** @param {string} theme */
function set(theme) {
  document.documentElement.dataset.theme = theme;
  emit('theme');
}

export function toggle() {
  const theme = current() === 'dark' ? 'light' : 'dark';
  set(theme);
  try { localStorage.setItem(KEY, theme); } catch { /* private mode: the choice lasts until the page is closed */ }
}

export function start() {
  let chosen = new URLSearchParams(location.search).get('theme');
  try { chosen ??= localStorage.getItem(KEY); } catch { /* private mode */ }
  if (chosen === 'light' || chosen === 'dark') set(chosen);
  system.addEventListener('change', () => emit('theme'));
}
