"""A receiver of signed events in Python: `python webhook.py PORT SECRET`. Any web framework does the same."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from cloudevents.core.bindings.http import HTTPMessage, from_structured
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

webhook = Webhook(sys.argv[2])
seen = set()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            webhook.verify(body, {name.lower(): value for name, value in self.headers.items()})
        except WebhookVerificationError:
            return self.answer(401)
        headers = {"content-type": "application/cloudevents+json"}
        event = from_structured(HTTPMessage(headers, body), JSONFormat())
        if event.get_id() not in seen:
            print(event.get_type(), event.get_data(), flush=True)
        seen.add(event.get_id())
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()


HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
