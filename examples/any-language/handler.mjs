// A Lambda function in Node. It says more than a handler of SQS can: why an event is refused, when to try again,
// what the result is, and which events follow.

const shipped = new Map();

export const handler = async (event) => {
  const batchItemFailures = [];
  const results = [];
  for (const record of event.Records) {
    const order = JSON.parse(record.body);
    const itemIdentifier = record.messageId;
    if (order.sku === "unknown") {
      const errors = [{ code: "no_such_sku", message: "there is no such article" }];
      batchItemFailures.push({ itemIdentifier, verdict: "reject", errors });
    } else if (order.sku === "tomorrow") {
      batchItemFailures.push({ itemIdentifier, verdict: "snooze", after: 3600 });
    } else {
      // The key is the same in every attempt: a second delivery does nothing.
      const key = record.messageAttributes.idempotency_key.stringValue;
      if (!shipped.has(key)) shipped.set(key, `parcel-${shipped.size + 1}`);
      const followUps = [{ kind: "order_shipped", payload: { order_id: order.order_id } }];
      results.push({ itemIdentifier, result: { parcel: shipped.get(key) }, followUps });
    }
  }
  return { batchItemFailures, results };
};
