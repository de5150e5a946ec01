// A receiver of signed events in Node: `node webhook.mjs PORT SECRET`. Any web framework does the same.

import { createServer } from "node:http";
import { HTTP } from "cloudevents";
import { Webhook } from "standardwebhooks";

const [port, secret] = process.argv.slice(2);
const webhook = new Webhook(secret);
const seen = new Set();

createServer(async (request, response) => {
  const parts = await request.toArray();
  const body = Buffer.concat(parts).toString();
  try {
    webhook.verify(body, request.headers);
  } catch {
    return response.writeHead(401).end();
  }
  const headers = { "content-type": "application/cloudevents+json" };
  const event = HTTP.toEvent({ headers, body });
  if (!seen.has(event.id)) console.log(event.type, JSON.stringify(event.data));
  seen.add(event.id);
  response.writeHead(204).end();
}).listen(Number(port), "127.0.0.1");
