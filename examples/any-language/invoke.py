"""Runs a handler on this machine as Lambda runs it, to try it out: `python invoke.py powertools_handler.handler 9001`."""

import importlib
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

module, name = sys.argv[1].rsplit(".", 1)
handler = getattr(importlib.import_module(module), name)


class Invoke(BaseHTTPRequestHandler):
    def do_GET(self):
        # `doctor` asks for the function's settings: there are none.
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self):
        event = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["x-amz-invocation-type"] == "DryRun":
            self.send_response(204)
            self.end_headers()
            return
        self.send_response(200)
        try:
            answer = handler(event, None)
        except Exception as error:
            answer = {"errorType": type(error).__name__, "errorMessage": str(error)}
            self.send_header("x-amz-function-error", "Unhandled")
        body = json.dumps(answer).encode()
        self.send_header("content-length", len(body))
        self.end_headers()
        self.wfile.write(body)


HTTPServer(("127.0.0.1", int(sys.argv[2])), Invoke).serve_forever()
