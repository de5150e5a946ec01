"""A Lambda function in Python with the FIFO processor of Powertools, which stops at the first failure. Its target says
`stops_at_first_failure = true`, so the events behind a failure go back without an attempt."""

from aws_lambda_powertools.utilities.batch import SqsFifoPartialProcessor, process_partial_response

processor = SqsFifoPartialProcessor()
processor.raise_on_entire_batch_failure = False


def ship(record):
    if record.json_body["sku"] == "sold out":
        raise ValueError("none on stock")


def handler(event, context):
    return process_partial_response(event, ship, processor, context)
