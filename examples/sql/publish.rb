# Ruby: `gem install pg`.
require "json"
require "pg"

connection = PG.connect(ENV.fetch("DATABASE_URL"))
# Results as Ruby's types instead of text.
connection.type_map_for_results = PG::BasicTypeMapForResults.new(connection)

def told(events)
  events.each { |event| puts "event #{event["id"]} #{event["created"] ? "new" : "duplicate"}" }
end

connection.transaction do
  connection.exec_params("INSERT INTO orders (id) VALUES ($1)", [7])
  payload = { order_id: 7, skus: ["a-1", "b-2"] }
  told connection.exec_params(
    "SELECT id, created FROM tidegate.publish($1, $2, group_key => $3, dedup_key => $4)",
    ["order_placed", payload.to_json, "customer-3", "order-7"]
  )
  events = [
    { kind: "order_placed", payload: { order_id: 8, skus: ["c-3"] } },
    { kind: "order_paid", payload: { order_id: 8 }, delay: 90 }
  ]
  told connection.exec_params("SELECT id, created FROM tidegate.publish_many($1)", [events.to_json])
end

begin
  connection.exec_params("SELECT tidegate.publish($1, NULL)", ["order_plcaed"])
rescue PG::InvalidParameterValue => error
  puts "refused: #{error.result.error_field(PG::Result::PG_DIAG_MESSAGE_PRIMARY)}"
end
