// node-postgres: `npm install pg`.
import pg from "pg";

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
// Ids are bigint, which node-postgres returns as strings.
const told = ({ id, created }) => console.log("event", id, created ? "new" : "duplicate");

try {
  await client.query("BEGIN");
  await client.query("INSERT INTO orders (id) VALUES ($1)", [7]);
  const payload = { order_id: 7, skus: ["a-1", "b-2"] };
  const published = await client.query(
    "SELECT id, created FROM tidegate.publish($1, $2, group_key => $3, dedup_key => $4)",
    ["order_placed", JSON.stringify(payload), "customer-3", "order-7"],
  );
  told(published.rows[0]);
  const events = [
    { kind: "order_placed", payload: { order_id: 8, skus: ["c-3"] } },
    { kind: "order_paid", payload: { order_id: 8 }, delay: 90 },
  ];
  // JSON.stringify: an array by itself would be sent as a Postgres array.
  const batch = await client.query("SELECT id, created FROM tidegate.publish_many($1)", [JSON.stringify(events)]);
  batch.rows.forEach(told);
  await client.query("COMMIT");
} catch (error) {
  await client.query("ROLLBACK");
  throw error;
}

try {
  await client.query("SELECT tidegate.publish($1, NULL)", ["order_plcaed"]);
} catch (error) {
  if (error.code !== "22023") throw error;
  console.log("refused:", error.message);
}
await client.end();
