"""A Lambda function in Python: an SQS handler as it is, with the batch processor of Powertools."""

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)


def ship(record: SQSRecord):
    order = record.json_body
    if order["sku"] == "sold out":
        raise ValueError(f"no {order['sku']} on stock")
    # Repeat nothing: this key is the same in every attempt.
    print("ship", order["order_id"], "with the key", record.message_attributes["idempotency_key"].string_value)


def handler(event, context):
    return process_partial_response(event, ship, processor, context)
