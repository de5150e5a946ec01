// Handles orders by SQL, with node-postgres: `npm install pg`.
import pg from "pg";

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();

// Many events at once, each with its verdict: done, retry, reject, snooze or release.
function verdict({ id, payload }) {
  if (payload.skus.length === 0) return { id, verdict: "reject", errors: [{ code: "no_items", message: "the order has no items" }] };
  return { id, result: { items: payload.skus.length } };
}

for (;;) {
  const { rows } = await client.query("SELECT * FROM tidegate.poll(ARRAY['order_placed'], most => 100, lease => '1 min')");
  if (rows.length === 0) break;
  const outcomes = JSON.stringify(rows.map(verdict));
  const settled = await client.query("SELECT * FROM tidegate.settle($1, $2)", [rows[0].token, outcomes]);
  for (const { id, outcome } of settled.rows) {
    if (outcome === "lost") console.log(`event ${id} has been taken by somebody else`);
  }
}
await client.end();
