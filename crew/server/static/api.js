/** Requests to the server that this page came from. */

export const root = /** @type {HTMLMetaElement} */ (document.querySelector('meta[name=crew-root]')).content;

export class ApiError extends Error {
  /** @param {number} status @param {string} text @param {string} kind */
  constructor(status, text, kind) {
    super(text);
    this.status = status;
    this.kind = kind;
  }
}

/** @param {string} path @param {RequestInit} [options] @returns {Promise<any>} */
export async function call(path, options = {}) {
  const response = await fetch(root + path, { credentials: 'same-origin', cache: 'no-store', ...options, headers: { Accept: 'application/json', ...options.headers } });
  if (response.ok) return response.json();
  let text = response.statusText || `The server answered ${response.status}.`, kind = '';
  try {
    const { error } = await response.json();
    kind = error?.type ?? error?.code ?? '';
    text = error?.message ?? error?.text ?? text;
    const violations = error?.violations ?? [];
    if (violations.length) text = violations.map((/** @type {any} */ v) => v.text ?? String(v)).join(' ');
  } catch { /* not JSON: the status line is all there is */ }
  throw new ApiError(response.status, text, kind);
}

/** @param {string} path @param {any} body */
export const post = (path, body) => call(path, { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });

const id = encodeURIComponent;
export const listRuns = () => call('/inspect/runs');
/** @param {string} cursor */
export const moreRuns = cursor => call(`/inspect/runs?cursor=${id(cursor)}`);
/** @param {string} run @param {string | null} [after] */
export const readRun = (run, after) => call(`/inspect/runs/${id(run)}${after ? `?after=${id(after)}` : ''}`);
/** @param {string} conversation */
export const readConversation = conversation => call(`/inspect/conversations/${id(conversation)}`);
/** @param {string} run @param {string} path @param {number} position */
export const readMessage = (run, path, position) => call(`/inspect/runs/${id(run)}/message?path=${id(path)}&position=${position}`);
/** @param {string} run @param {string} agent @param {string} head */
export const readInstructions = (run, agent, head) => call(`/inspect/runs/${id(run)}/instructions?agent=${id(agent)}&head=${id(head)}`);
/** @param {string} run @param {string} words */
export const searchRun = (run, words) => call(`/inspect/runs/${id(run)}/search?q=${id(words)}`);
/** @param {string} run @param {string} [policy] @param {number} [limit] */
export const whatIf = (run, policy, limit) => call(`/inspect/runs/${id(run)}/what-if${policy ? `?policy=${id(policy)}&limit=${limit}` : ''}`);
/** @param {string} run */
export const exportAddress = run => `${root}/inspect/runs/${id(run)}/export`;
/** @param {string} run @param {Record<string, any>} answers */
export const answer = (run, answers) => post(`/runs/${id(run)}/answers`, { answers });
/** @param {Record<string, any>} body @returns {Promise<{ run_id: string }>} */
export const startRun = body => post('/runs', body);
/** @param {string} run */
export const cancel = run => call(`/runs/${id(run)}`, { method: 'DELETE' });

/**
 * The events of a run from a cursor on, as `{ kind, data }`; ends when the server closes the stream.
 * @param {string} run @param {string | null} after @param {AbortSignal} signal
 * @returns {AsyncGenerator<{ kind: string, data: string }>}
 */
export async function* events(run, after, signal) {
  const headers = { Accept: 'text/event-stream', ...(after ? { 'Last-Event-ID': after } : {}) };
  const response = await fetch(`${root}/runs/${id(run)}/events`, { credentials: 'same-origin', cache: 'no-store', headers, signal });
  if (!response.ok || !response.body) throw new ApiError(response.status, `The server answered ${response.status}.`, '');
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop() ?? '';
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split('\n').map(line => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 2)]));
      if (fields.event) yield { kind: fields.event, data: fields.data ?? '' };
    }
  }
}
