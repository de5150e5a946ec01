// A Lambda function in Go: an SQS handler as it is.
package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
)

type order struct {
	OrderID int64  `json:"order_id"`
	SKU     string `json:"sku"`
}

func ship(record events.SQSMessage) error {
	var placed order
	if err := json.Unmarshal([]byte(record.Body), &placed); err != nil {
		return err
	}
	fmt.Println("ship", placed.OrderID, "with the key", *record.MessageAttributes["idempotency_key"].StringValue)
	return nil
}

func handler(_ context.Context, event events.SQSEvent) (events.SQSEventResponse, error) {
	var response events.SQSEventResponse
	for _, record := range event.Records {
		if err := ship(record); err != nil {
			failure := events.SQSBatchItemFailure{ItemIdentifier: record.MessageId}
			response.BatchItemFailures = append(response.BatchItemFailures, failure)
		}
	}
	return response, nil
}

func main() {
	lambda.Start(handler)
}
