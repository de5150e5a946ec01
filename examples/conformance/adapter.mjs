// The adapter of conformance.py for node-postgres: `npm install pg`.
import { createInterface } from "node:readline";
import pg from "pg";

// Payloads stay text: JSON.parse rounds large numbers.
for (const json of [pg.types.builtins.JSON, pg.types.builtins.JSONB]) pg.types.setTypeParser(json, (text) => text);

const asJson = new Set(["payload", "errors", "error", "result", "follow_ups", "outcomes"]);
const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
client.on("error", () => {}); // The next call says so too.
await client.connect();

async function perform({ call, ...given }) {
  if (["begin", "commit", "rollback"].includes(call)) {
    const { command } = await client.query(call);
    // Postgres answers so to the commit of a transaction that has failed, and node-postgres raises nothing.
    if (call === "commit" && command === "ROLLBACK") throw new Error("the transaction had failed, and nothing of it was stored");
    return [];
  }
  const names = Object.keys(given).map((name, index) => `${name} => $${index + 1}`);
  // JSON.stringify: an array by itself would be sent as a Postgres array.
  const values = Object.entries(given).map(([name, value]) => (asJson.has(name) ? JSON.stringify(value) : value));
  return (await client.query(`SELECT * FROM tidegate.${call}(${names})`, values)).rows;
}

for await (const line of createInterface({ input: process.stdin })) {
  const answer = await perform(JSON.parse(line)).then(
    (rows) => ({ rows }),
    (error) => ({ error: { sqlstate: error.code ?? null, message: error.message } }),
  );
  console.log(JSON.stringify(answer));
}
await client.end();
