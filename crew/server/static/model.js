/**
 * From the data of the server to what the page draws: transcripts in display order, what each request held, and costs.
 *
 * @typedef {{ i: number, pos: number, n: number | string, id: string, role: string, tok: number, at: number | null,
 *   goal: boolean, agent?: string, origin?: string, text?: string, len?: number, images?: number, covers?: number[],
 *   calls?: { id: string, name: string, args: string, len: number }[],
 *   results?: { id: string, name: string, text: string, len: number, outcome: string, s?: number }[] }} Message
 * @typedef {{ kind: string, policy: string, reason?: string, before?: number, after?: number, tokens?: number[],
 *   where: string, agent?: string, ids?: number[], masked?: number[], covers?: number, cost?: number | null,
 *   waiting?: number, m?: number }} Pruning
 * @typedef {{ i: number, n: number, agent: string, head: string, provider: string, model: string, at: number, end: number | null,
 *   in: number, cached: number, written: number, out: number, cost: number | null, saved: number | null,
 *   unpruned: number, lines: number[][], same: number, base: number | null, rule: string, fixed: number,
 *   before: Pruning[], retries: number, reply: number, seen: number, failed?: string, removed: any[], repairs: string[],
 *   turn?: number, runId: string, sent: number[][], place: Map<number, number>, broke: boolean, reread: number,
 *   cum: number, unbounded: number, front: number, covered: Map<number, number>, open: boolean, billed: boolean }} Request
 * @typedef {{ i: number, p: number, k: string, name: string, s: number, e: number | null, t: number, r?: number,
 *   m?: number, call?: string, key?: string, args?: string, tok?: number, d?: string, why?: string, bad?: boolean,
 *   covers?: number, outcome?: string, cost?: number, answer?: string, on?: string, wrote?: string }} Span
 * @typedef {{ path: string, name: string, group: string, parent: number, inherited: number, offset: number,
 *   messages: any[], requests: any[], runId?: string }} RawThread
 * `arrived` is when the page got the data, by `performance.now`.
 * @typedef {{ cursor: string | null, run: any, prices: Record<string, number[]>, clock: number, arrived: number, threads: RawThread[], spans: Span[] }} RunData
 */

import { sum } from './format.js';

export const [NONE, CACHED, FRESH, MASKED, SUMMED, EVICTED, SUMMARY] = [0, 1, 2, 3, 4, 5, 6];
export const STATES = [CACHED, FRESH, MASKED, SUMMARY, SUMMED, EVICTED];
export const NAMES = ['not yet written', 'cached', 'fresh', 'masked', 'summarised', 'evicted', 'summary'];
const FORM_NAMES = ['', 'masked', 'cut', 'without its calls', 'marker'];
const OMITTED_TOKENS = 9;

/** Add what the server sent to what the page has. @param {RunData | null} data @param {RunData} part @returns {RunData} */
export function merge(data, part) {
  if (!data) return part;
  const put = (/** @type {any[]} */ items, /** @type {any[]} */ changed) => { for (const item of changed) items[item.i] = item; };
  part.threads.forEach((thread, i) => {
    const known = data.threads[i];
    if (!known) { data.threads[i] = thread; return; }
    put(known.messages, thread.messages);
    put(known.requests, thread.requests);
    Object.assign(known, { inherited: thread.inherited, offset: thread.offset });
  });
  put(data.spans, part.spans);
  return { ...data, cursor: part.cursor, run: part.run, prices: part.prices, clock: part.clock, arrived: part.arrived };
}

/** The turns of a conversation as one run: one transcript, all requests. @param {RunData[]} turns @param {string} id @returns {RunData} */
export function combine(turns, id) {
  const last = turns[turns.length - 1], main = last.threads[0];
  const threads = [{ ...main, requests: /** @type {any[]} */ ([]) }], spans = /** @type {any[]} */ ([]);
  const totals = { requests: 0, in: 0, cached: 0, written: 0, out: 0, cost: 0, saved: 0, tokens_saved: 0, breaks: 0, tools: 0 };
  let start = 0;
  spans.push({ i: 0, p: -1, k: 'run', name: '', s: 0, e: null, t: 0 });
  turns.forEach((turn, number) => {
    const first = threads[0].requests.length, firstThread = threads.length - 1, firstSpan = spans.length;
    const shift = (/** @type {any} */ x) => ({ ...x, at: x.at + start, end: x.end == null ? null : x.end + start, runId: turn.run.id, turn: number + 1 });
    turn.threads.forEach((thread, i) => {
      if (!i) {
        for (const q of thread.requests) threads[0].requests.push({ ...shift(q), base: q.base == null ? null : q.base + first, i: q.i + first, n: q.n + first });
        for (const m of thread.messages) if (m.pos >= thread.inherited) Object.assign(threads[0].messages[m.pos] ?? {}, { at: m.at == null ? null : m.at + start, turn: number + 1 });
      } else {
        threads.push({ ...thread, name: `${number + 1}· ${thread.name}`, parent: thread.parent ? thread.parent + firstThread : 0, runId: turn.run.id, requests: thread.requests.map(shift), messages: thread.messages.map(m => ({ ...m, at: m.at == null ? null : m.at + start })) });
      }
    });
    for (const s of turn.spans) {
      const top = s.k === 'run';
      spans.push({ ...s, i: spans.length, p: top ? 0 : s.p + firstSpan, k: top ? 'turn' : s.k, name: top ? `turn ${number + 1}` : s.name,
        d: top ? turn.run.goal : s.d, s: s.s + start, e: s.e == null ? null : s.e + start, t: s.t ? s.t + firstThread : 0, r: s.r && !s.t ? s.r + first : s.r });
    }
    for (const name in totals) totals[name] = turn.run.totals[name] == null || totals[name] == null ? null : totals[name] + turn.run.totals[name];
    start += turn.run.seconds;
  });
  const run = { ...last.run, id: last.run.id, conversationId: id, turns: turns.length, seconds: start, goal: turns[0].run.goal, created: turns[0].run.created,
    waited: 0, totals: { ...totals, messages: last.run.totals.messages, known_cost: totals.cost } };
  return { cursor: null, run, prices: Object.assign({}, ...turns.map(turn => turn.prices)), clock: last.clock, arrived: last.arrived, threads, spans };
}

export class Thread {
  /** @param {RawThread} raw @param {Thread | null} parent @param {RunData} data */
  constructor(raw, parent, data) {
    this.path = raw.path;
    this.name = raw.name;
    this.group = raw.group;
    this.runId = raw.runId ?? data.run.id;
    this.inherited = raw.inherited;
    /** @type {Message[]} */
    this.M = displayOrder([...(parent && raw.offset ? parent.M.filter(m => m.pos < raw.offset) : []), ...raw.messages]);
    /** @type {Map<number, number>} display index by position */
    this.index = new Map(this.M.map((m, i) => [m.pos, i]));
    this.size = sum(this.M, m => m.covers ? 0 : 1);
    /** @type {Request[]} */
    this.Q = [];
    /** @type {Map<number, { policy: string, reason: string, n: number }>} why a message left the history */
    this.gone = new Map(parent ? [...parent.gone].filter(([pos]) => pos < raw.offset) : []);
    /** @type {Map<string, { policy: string, reason: string, n: number }>} why a message left the view of an agent */
    this.hidden = new Map();
    /** @type {Map<number, number>} the first request that masks a message */
    this.maskedAt = new Map();
    this.reports = false;
    const last = raw.messages.length ? raw.messages[raw.messages.length - 1].pos + 1 : raw.offset;
    for (const q of raw.requests) this.addRequest(q, last, data);
    // Without cache reads on any bill, the unchanged prefix is shown as such.
    this.reports = this.Q.some(q => q.cached > 0);
    for (const q of this.Q) this.price(q, data.prices);
  }

  /** @param {any} raw @param {number} size @param {RunData} data */
  addRequest(raw, size, data) {
    const before = raw.base == null ? [] : this.Q[raw.base]?.sent ?? [];
    /** @type {Request} */
    const q = { cached: 0, written: 0, out: 0, cost: 0, saved: 0, rule: '', fixed: 0, removed: [], repairs: [], runId: data.run.id, ...raw };
    q.open = q.end == null;
    q.billed = raw.cached !== undefined;
    q.seen = raw.seen ?? Math.max(0, ...raw.lines.map((/** @type {number[]} */ line) => line[0] + 1), q.open ? size : 0);
    q.reply = raw.reply ?? -1;
    q.sent = raw.base == null ? raw.lines : [...before.slice(0, raw.same), ...raw.lines];
    q.place = new Map(q.sent.map((line, at) => [line[0], at]));
    q.broke = !!q.rule && q.rule !== 'first request';
    for (const change of q.before) {
      for (const pos of change.ids ?? []) {
        const reason = { policy: change.policy, reason: change.reason ?? '', n: q.n };
        if (change.where === 'history') { if (!this.gone.has(pos)) this.gone.set(pos, reason); }
        else this.hidden.set(`${change.agent} ${pos}`, reason);
      }
    }
    for (const [pos, form] of q.sent) if (form === 1 && !this.maskedAt.has(pos)) this.maskedAt.set(pos, q.n);
    q.covered = this.coveredBy(q);
    const known = new Set(before.map(line => line[0]));
    q.reread = q.broke ? sum(q.sent.slice(q.same), ([pos, form, tok]) => known.has(pos) || (raw.base == null && pos < this.inherited) ? form === 1 ? OMITTED_TOKENS : tok : 0) : 0;
    this.Q.push(q);
  }

  /** The summary in a request that stands for each message. @param {Request} q */
  coveredBy(q) {
    const summaries = q.sent.filter(([pos]) => this.at(pos)?.covers), last = this.Q[this.Q.length - 1];
    const key = summaries.map(line => line[0]).join();
    if (last && /** @type {any} */ (last).coverKey === key) { /** @type {any} */ (q).coverKey = key; return last.covered; }
    const covered = new Map();
    const cover = (/** @type {number} */ pos, /** @type {number} */ by) => {
      for (const inner of this.at(pos)?.covers ?? []) {
        if (covered.has(inner)) continue;
        covered.set(inner, by);
        cover(inner, by);
      }
    };
    for (const [pos] of summaries) cover(pos, pos);
    /** @type {any} */ (q).coverKey = key;
    return covered;
  }

  /** @param {Request} q @param {Record<string, number[]>} prices */
  price(q, prices) {
    const price = prices[q.model], rest = q.in - sum(q.sent, ([pos, , tok]) => { const m = this.at(pos); return m ? this.tokens(q, m) : tok; });
    // Before the first bill, this is a rough estimate; the bill has the sum. What the messages do not take is its share.
    if (q.billed && rest > 0) q.fixed = rest;
    // Where no bill reports cached tokens, the charts show the part of the prompt that did not change.
    const kept = q.same && q.rule !== 'first request' ? q.fixed + sum(q.sent.slice(0, q.same), ([, form, tok]) => form === 1 ? OMITTED_TOKENS : tok) : 0;
    q.front = !q.billed ? 0 : this.reports ? q.cached : Math.min(q.in, kept);
    /** @type {any} */ (q).breakCost = q.broke && price ? q.reread * ((q.written ? price[2] : price[0]) - price[1]) / 1e6 : null;
  }

  /** The message at a position. @param {number} pos @returns {Message | undefined} */
  at(pos) {
    const i = this.index.get(pos);
    return i === undefined ? undefined : this.M[i];
  }

  /** What became of a message in a request. @param {Request} q @param {Message} m */
  state(q, m) {
    const at = q.place.get(m.pos);
    if (at === undefined) return m.pos >= q.seen ? NONE : q.covered.has(m.pos) ? SUMMED : EVICTED;
    const form = q.sent[at][1];
    if (form === 1 || form === 2) return MASKED;
    if (m.covers) return SUMMARY;
    return this.isCached(q, at) ? CACHED : FRESH;
  }

  /** @param {Request} q @param {number} at the place in the request; -1: instructions and tools */
  isCached(q, at) {
    if (q.rule === 'first request' && !q.cached) return false;
    return at < q.same && (q.cached > 0 || !this.reports || q.open);
  }

  /** @param {Request} q */
  fixedState(q) {
    return this.isCached(q, -1) && q.rule !== 'first request' ? CACHED : FRESH;
  }

  /** The states of all messages in a request, instructions and tools first. @param {Request} q */
  column(q) {
    const column = new Uint8Array(this.M.length + 1);
    column[0] = this.fixedState(q);
    for (let i = 0; i < this.M.length; i++) column[i + 1] = this.state(q, this.M[i]);
    // The row of a summary that is not written yet, or was replaced, shows no gap.
    for (let i = 0; i < this.M.length; i++) if (this.M[i].covers && column[i + 1] === NONE && column[i + 2]) column[i + 1] = column[i];
    return column;
  }

  /** How many messages are in each state, and their tokens. @param {Request} q */
  counts(q) {
    const counts = NAMES.map(() => ({ n: 0, tok: 0 }));
    for (const m of this.M) {
      const state = this.state(q, m);
      if (m.covers && state !== SUMMARY) continue;
      counts[state].n++;
      counts[state].tok += this.tokens(q, m, state);
    }
    return counts;
  }

  /** @param {Request} q @param {Message} m @param {number} [state] */
  tokens(q, m, state = this.state(q, m)) {
    const at = q.place.get(m.pos);
    if (state !== MASKED || at === undefined) return m.tok;
    return q.sent[at][1] === 1 ? OMITTED_TOKENS * Math.max(1, m.results?.length ?? 1) : q.sent[at][2];
  }

  /** @param {Request} q */
  exists(q) {
    return sum(this.M, m => m.pos < q.seen && !m.covers ? 1 : 0);
  }

  /** Why a message is in this state. @param {Request} q @param {Message} m */
  why(q, m) {
    const state = this.state(q, m), at = q.place.get(m.pos) ?? -1;
    switch (state) {
      case CACHED: return this.reports ? 'read from the prompt cache' : 'unchanged since the request before';
      case FRESH: return q.broke && at >= q.same && m.pos < q.seen - 3 ? `sent again: ${q.rule} changed the prompt before it` : 'new in this request';
      case MASKED: return q.sent[at][1] === 2 ? 'cut: only its beginning and end are shown' : `reads [Omitted] since request ${this.maskedAt.get(m.pos) ?? q.n}`;
      case SUMMARY: return `stands for ${m.covers?.length} messages`;
      case SUMMED: return `${label(this.at(q.covered.get(m.pos) ?? -1))} stands for it`;
      case EVICTED: return this.whyGone(q, m);
      default: return 'not written yet';
    }
  }

  /** @param {Request} q @param {Message} m */
  whyGone(q, m) {
    const hidden = this.hidden.get(`${q.agent} ${m.pos}`), gone = this.gone.get(m.pos) ?? hidden;
    if (gone) return `${gone.policy}, before request ${gone.n}${gone.reason ? ': ' + gone.reason : ''}`;
    const removed = q.removed.find(line => line[0] === m.pos);
    return removed?.[2] || (q.rule && q.rule !== 'first request' ? q.rule : 'not shown to this agent');
  }

  /** How a request showed a message, if not whole. @param {Request} q @param {Message} m */
  form(q, m) {
    const at = q.place.get(m.pos);
    return at === undefined ? '' : FORM_NAMES[q.sent[at][1]] ?? '';
  }
}

/** Messages with numbers; a summary stands after the last message that it covers. @param {any[]} raw @returns {Message[]} */
function displayOrder(raw) {
  let real = 0, summaries = 0;
  const anchors = new Map(), byPos = new Map(raw.map(m => [m.pos, m]));
  const anchor = (/** @type {any} */ m, /** @type {number} */ depth) => m.covers && depth < 50
    ? Math.max(-1, ...m.covers.map((/** @type {number} */ pos) => byPos.has(pos) ? anchor(byPos.get(pos), depth + 1) : pos)) : m.pos;
  const messages = raw.map(m => ({ ...m, n: m.covers ? 'S' + ++summaries : ++real }));
  for (const m of messages) anchors.set(m, m.covers ? anchor(m, 0) + 0.5 + m.pos / 1e9 : m.pos);
  messages.sort((a, b) => anchors.get(a) - anchors.get(b));
  messages.forEach((m, i) => { m.i = i; });
  return messages;
}

/** @param {Message | undefined} m */
export const label = m => !m ? 'a marker' : typeof m.n === 'string' ? m.n : '#' + m.n;

const ORIGINS = { join: 'branch results', branch: 'branch brief', route: 'route', then: 'next agent', answer: 'answer', marker: 'marker', output: 'output schema' };

/** @param {Message} m */
export function title(m) {
  if (m.covers) return `summary ${m.n}`;
  if (m.goal) return 'goal';
  if (m.role === 'tool') return (m.results ?? []).map(r => r.name || 'result').join(', ');
  if (m.calls?.length) return m.calls.map(c => c.name).join(', ');
  return ORIGINS[m.origin ?? ''] ?? m.agent ?? m.role;
}

/** @param {Message} m */
export function iconName(m) {
  if (m.covers) return 'summary';
  if (m.goal) return 'goal';
  if (m.role === 'tool') return 'tool';
  if (m.role === 'assistant') return 'agent';
  return m.origin === 'join' || m.origin === 'branch' ? 'fork' : 'user';
}

export class View {
  /** @param {RunData} data */
  constructor(data) {
    this.data = data;
    this.run = data.run;
    this.prices = data.prices;
    /** Whether there is anything to say about costs: a scripted or local model has no price. */
    this.priced = Object.keys(data.prices).length > 0 || data.run.totals.cost > 0 || data.run.totals.known_cost > 0;
    /** @type {Thread[]} */
    this.threads = [];
    for (const raw of data.threads) this.threads.push(new Thread(raw, raw.parent < 0 ? null : this.threads[raw.parent], data));
    this.now = 0.001;
    this.tick();
    /** @type {Span[]} */
    this.spans = data.spans;
    /** @type {number[][]} */
    this.kids = this.spans.map(() => []);
    for (const span of this.spans) if (span.p >= 0) this.kids[span.p].push(span.i);
    this.peak = Math.max(1, ...this.threads.flatMap(t => t.Q.map(q => q.in)));
    this.addCosts();
  }

  /** The seconds that the run has been at work: those of a run under way go on after its last event. */
  tick() {
    const { run } = this.data;
    this.now = Math.max(run.seconds + (run.status === 'running' ? this.sinceUpdate() : 0), 0.001);
  }

  /** The seconds since the last event, by the clock of the server: that of this page may differ. */
  sinceUpdate() {
    const { run, clock, arrived } = this.data;
    return Math.max(0, clock - run.updated) + (performance.now() - arrived) / 1e3;
  }

  /** Costs so far: those of the main transcript include the branches and summaries up to then. */
  addCosts() {
    const parts = this.threads.flatMap((t, i) => t.Q.map(q => ({ at: q.end ?? this.now, q, i, extra: sum(q.before, b => b.cost ?? 0) })));
    parts.sort((a, b) => a.at - b.at);
    const own = this.threads.map(() => [0, 0]), all = [0, 0];
    for (const { q, i, extra } of parts) {
      const cost = q.cost ?? 0, unpruned = cost + (q.saved ?? 0);
      for (const total of i ? [own[i], all] : [all]) { total[0] += cost + extra; total[1] += unpruned; }
      [q.cum, q.unbounded] = i ? own[i] : all;
    }
  }

  /** The end of a span; one under way ends now. @param {Span} s */
  end(s) {
    return s.e ?? this.now;
  }
}
