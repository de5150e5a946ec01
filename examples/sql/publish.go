// Go: database/sql with github.com/lib/pq.
package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/lib/pq"
)

type event struct {
	Kind    string         `json:"kind"`
	Payload map[string]any `json:"payload"`
	// Seconds. Empty fields are left out.
	Delay float64 `json:"delay,omitempty"`
}

func main() {
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	check(err)
	defer db.Close()

	tx, err := db.Begin()
	check(err)
	defer tx.Rollback()
	_, err = tx.Exec("INSERT INTO orders (id) VALUES ($1)", 7)
	check(err)
	// As a string: []byte would be sent as bytea.
	payload, err := json.Marshal(map[string]any{"order_id": 7, "skus": []string{"a-1", "b-2"}})
	check(err)
	tell(tx.Query("SELECT id, created FROM tidegate.publish($1, $2, group_key => $3, dedup_key => $4)",
		"order_placed", string(payload), "customer-3", "order-7"))
	events, err := json.Marshal([]event{
		{Kind: "order_placed", Payload: map[string]any{"order_id": 8, "skus": []string{"c-3"}}},
		{Kind: "order_paid", Payload: map[string]any{"order_id": 8}, Delay: 90},
	})
	check(err)
	tell(tx.Query("SELECT id, created FROM tidegate.publish_many($1)", string(events)))
	check(tx.Commit())

	_, err = db.Exec("SELECT tidegate.publish($1, NULL)", "order_plcaed")
	var refused *pq.Error
	if errors.As(err, &refused) && refused.Code == "22023" {
		fmt.Println("refused:", refused.Message)
	} else {
		check(err)
	}
}

func tell(rows *sql.Rows, err error) {
	check(err)
	defer rows.Close()
	for rows.Next() {
		var id int64
		var created bool
		check(rows.Scan(&id, &created))
		fmt.Println("event", id, map[bool]string{true: "new", false: "duplicate"}[created])
	}
	check(rows.Err())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
