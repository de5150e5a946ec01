"""A receiver of signed events with FastAPI: `SECRET=whsec_… uvicorn receiver:app`. It says what became of each event."""

import os

from fastapi import FastAPI, Request, Response
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

app = FastAPI()
webhook = Webhook(os.environ["SECRET"])


@app.post("/events")
async def receive(request: Request):
    try:
        event = webhook.verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    outcome = {"itemIdentifier": event["id"], "result": {"invoice": f"invoice-{event['data']['order_id']}"}}
    if event["data"]["sku"] == "unknown":
        outcome = {"itemIdentifier": event["id"], "errors": [{"code": "no_such_sku", "message": "there is no such article"}]}
    return {"results": [outcome]}
