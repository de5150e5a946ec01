// A receiver of signed events with Express: `node receiver.mjs PORT SECRET`. It says what became of each event.

import express from "express";
import { Webhook } from "standardwebhooks";

const [port, secret] = process.argv.slice(2);
const webhook = new Webhook(secret);
const app = express();

// The signature covers the bytes of the body, so nothing may parse them before.
app.post("/events", express.raw({ type: "*/*", limit: "3mb" }), (request, response) => {
  let event;
  try {
    event = webhook.verify(request.body, request.headers);
  } catch {
    return response.sendStatus(401);
  }
  const outcome = { itemIdentifier: event.id, result: { invoice: `invoice-${event.data.order_id}` } };
  const errors = [{ code: "no_such_sku", message: "there is no such article" }];
  response.json({ results: [event.data.sku === "unknown" ? { itemIdentifier: event.id, errors } : outcome] });
}).listen(Number(port), "127.0.0.1");
