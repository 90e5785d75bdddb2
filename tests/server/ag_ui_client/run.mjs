// Runs a crew with the official AG-UI client, which verifies every event, and approves what its interrupts ask for.
// Arguments: the folder of the client's package, the address of the endpoint, the bearer token, and the thread.
import { pathToFileURL } from "node:url";
import { createRequire } from "node:module";

const [folder, url, token, threadId] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/`));
const { HttpAgent, buildResumeArray } = require("@ag-ui/client");

const agent = new HttpAgent({ url, threadId, headers: { Authorization: `Bearer ${token}` } });
agent.messages = [{ id: `${threadId}-goal`, role: "user", content: "Please pay order 3 back." }];
let resume;
let runs = 0;
let result;
let events = 0;

do {
  const runId = `${threadId}-${runs}`;
  ({ result } = await agent.runAgent({ runId, resume }, { onEvent: () => void (events += 1) }));
  runs += 1;
  const answers = agent.pendingInterrupts.map(({ id, responseSchema }) => {
    const payload = responseSchema.type === "string" ? (responseSchema.enum ?? ["Yes."])[0] : true;
    return [id, { status: "resolved", payload }];
  });
  resume = answers.length ? buildResumeArray(agent.pendingInterrupts, Object.fromEntries(answers)) : undefined;
} while (resume && runs < 10);

const ids = agent.messages.map((message) => message.id);
console.log(JSON.stringify({ runs, events, result, messages: ids.length, unique: new Set(ids).size }));
