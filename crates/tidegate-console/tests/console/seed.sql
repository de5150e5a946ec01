-- A queue on a bad afternoon, for the console to show: of every state some, and of what is hostile enough.

INSERT INTO tidegate.event_kind (kind) SELECT k FROM unnest(ARRAY[
    'order_placed', 'invoice_sent', 'parcel_shipped', 'refund_requested', 'newsletter', 'stock_counted', 'not_handled',
    'hostile <script>window.hacked=1</script>']) AS k ON CONFLICT DO NOTHING;
SELECT tidegate.pause('newsletter', 'the list is being cleaned', 'grace');
SELECT tidegate.register_kind('invoice_sent', '{"concurrency": 4, "backoff_ms": 2000}');

-- What ended: by the minute for two hours, by the hour for two days, by the day for a month.
INSERT INTO tidegate.minute_stats (minute, kind, status, within_ms, events, attempts, latency_ms)
SELECT m, k.kind, s.status, s.within_ms, greatest(1, round(k.weight * s.part * (1.1 + sin(extract(epoch FROM m) / 900) * 0.6)))::bigint AS n,
       greatest(1, round(k.weight * s.part * 1.2))::bigint, greatest(1, round(k.weight * s.part * s.mean))::bigint
  FROM (SELECT date_trunc('minute', now()) - make_interval(mins => n) AS m, 1 AS scale FROM generate_series(0, 119) AS n
        UNION ALL SELECT date_trunc('hour', now()) - make_interval(hours => n), 60 FROM generate_series(3, 47) AS n
        UNION ALL SELECT date_trunc('day', now(), 'UTC') - make_interval(days => n), 1440 FROM generate_series(3, 40) AS n) AS t
 CROSS JOIN (VALUES ('order_placed', 60), ('invoice_sent', 40), ('parcel_shipped', 25), ('refund_requested', 6), ('stock_counted', 90)) AS k(kind, weight)
 CROSS JOIN (VALUES ('COMPLETED', 50, 0.5, 30), ('COMPLETED', 250, 0.3, 150), ('COMPLETED', 1000, 0.12, 600), ('COMPLETED', 30000, 0.05, 9000),
                    ('COMPLETED_WITH_ERRORS', 1000, 0.006, 700), ('FAILED', 600000, 0.012, 300000)) AS s(status, within_ms, part, mean)
 WHERE s.status = 'COMPLETED' OR k.kind IN ('invoice_sent', 'refund_requested') OR extract(minute FROM m)::int % 11 < 3;

-- The log.
INSERT INTO tidegate.event_log (id, kind, payload, group_key, correlation_id, status, attempts, max_attempts, errors, result, progress,
                                created_at, processing_started_at, finished_at, expires_at, traceparent)
SELECT n, (ARRAY['order_placed', 'invoice_sent', 'parcel_shipped', 'refund_requested', 'stock_counted'])[1 + n % 5],
       json_build_object('order_id', 4000 + n, 'total', round((n * 7.31)::numeric, 2), 'currency', 'EUR', 'lines', json_build_array(json_build_object('sku', 'A-' || n, 'count', n % 4 + 1))),
       CASE WHEN n % 3 = 0 THEN 'customer-' || n % 40 END, 'order-' || 4000 + n,
       CASE WHEN n % 17 = 0 THEN 'FAILED' WHEN n % 23 = 0 THEN 'COMPLETED_WITH_ERRORS' ELSE 'COMPLETED' END,
       CASE WHEN n % 17 = 0 THEN 5 ELSE 1 + n % 2 END, 5,
       CASE WHEN n % 17 = 0 THEN (SELECT jsonb_agg(jsonb_build_object('handler', 'book', 'code', (ARRAY['http_503', 'timeout', 'attempts_exhausted'])[1 + n % 3],
                'message', 'the payment service did not answer within 5 s', 'attempt', a, 'at', now() - make_interval(mins => n / 2 + 6 - a))) FROM generate_series(1, 5) AS a)
            WHEN n % 23 = 0 THEN jsonb_build_array(jsonb_build_object('handler', 'book', 'code', '422', 'message', 'the order has no lines left', 'attempt', 1, 'at', now(), 'details', '{"field": "lines"}'::jsonb))
            ELSE '[]' END,
       CASE WHEN n % 17 > 0 AND n % 23 > 0 THEN jsonb_build_object('book', jsonb_build_object('booking', n)) END, NULL,
       now() - make_interval(mins => n / 2 + 1), now() - make_interval(mins => n / 2, secs => 30), now() - make_interval(mins => n / 2), now() + interval '40 days',
       '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  FROM generate_series(1, 400) AS n;
UPDATE tidegate.minute_stats AS m
   SET code = CASE m.status WHEN 'FAILED' THEN (ARRAY['http_503', 'timeout', 'attempts_exhausted'])[1 + extract(epoch FROM m.minute)::bigint / 60 % 3] ELSE '422' END
 WHERE m.status <> 'COMPLETED';
UPDATE tidegate.minute_stats AS m
   SET last_id = (SELECT max(l.id) FROM tidegate.event_log AS l WHERE (l.kind, l.status, l.errors->-1->>'code') = (m.kind, m.status, m.code))
 WHERE m.code IS NOT NULL;
SELECT setval('tidegate.event_queue_id_seq', 1000);

-- A family: an order, its follow-ups, a replay.
INSERT INTO tidegate.event_log (id, kind, payload, status, attempts, max_attempts, errors, created_at, finished_at, expires_at, parent_id, replay_of)
VALUES (501, 'order_placed', '{"order_id": 77}', 'COMPLETED', 1, 5, '[]'::jsonb, now() - interval '50 min', now() - interval '50 min', now() + interval '20 days', NULL, NULL),
       (502, 'invoice_sent', '{"order_id": 77}', 'FAILED', 5, 5, jsonb_build_array(jsonb_build_object('code', 'http_503', 'handler', 'print', 'attempt', 5, 'message', 'the printer is out of paper', 'at', now() - interval '30 min')), now() - interval '49 min', now() - interval '30 min', now() + interval '20 days', 501, NULL),
       (503, 'parcel_shipped', '{"order_id": 77}', 'COMPLETED', 1, 5, '[]', now() - interval '49 min', now() - interval '48 min', now() + interval '20 days', 501, NULL),
       (504, 'invoice_sent', '{"order_id": 77}', 'COMPLETED', 2, 5, '[]', now() - interval '20 min', now() - interval '19 min', now() + interval '20 days', 501, 502),
       (505, 'newsletter', '{"order_id": 77}', 'COMPLETED', 1, 5, '[]', now() - interval '18 min', now() - interval '18 min', now() + interval '20 days', 504, NULL);

-- Live events: ready, delayed, blocked groups, in hand, stuck.
INSERT INTO tidegate.event_queue (kind, payload, correlation_id, created_at)
SELECT (ARRAY['order_placed', 'invoice_sent', 'stock_counted', 'newsletter'])[1 + n % 4], json_build_object('n', n), 'order-' || 9000 + n, now() - make_interval(secs => n * 7)
  FROM generate_series(1, 60) AS n;
INSERT INTO tidegate.event_queue (kind, payload, group_key, attempts, available_at, created_at, last_error, errors)
SELECT 'refund_requested', json_build_object('customer', g), 'customer-' || 900 + g, CASE WHEN o = 1 THEN 2 ELSE 0 END,
       CASE WHEN o = 1 THEN now() + interval '7 min' ELSE now() END, now() - make_interval(mins => 40 - o),
       CASE WHEN o = 1 THEN 'http_503: the bank did not answer' END,
       CASE WHEN o = 1 THEN jsonb_build_array(jsonb_build_object('code', 'http_503', 'handler', 'pay_back', 'attempt', 2, 'message', 'the bank did not answer', 'at', now() - interval '2 min')) ELSE '[]' END
  FROM generate_series(1, 6) AS g, generate_series(1, 4) AS o;
INSERT INTO tidegate.lease (token, worker, ids, started_to, taken_at, renewed_at, expires_at, clear_to, as_of)
SELECT gen_random_uuid(), gen_random_uuid(), int8multirange(int8range(min(id), min(id) + 4)), min(id) + 3, now() - interval '20 s', now() - interval '2 s', now() + interval '1 h', 0, pg_current_xact_id()
  FROM tidegate.event_queue WHERE kind = 'order_placed'
UNION ALL
SELECT gen_random_uuid(), gen_random_uuid(), int8multirange(int8range(min(id) + 10, min(id) + 13)), min(id) + 12, now() - interval '9 min', now() - interval '8 min', now() - interval '6 min', 0, pg_current_xact_id()
  FROM tidegate.event_queue WHERE kind = 'order_placed';

-- Services, drains, schedules.
INSERT INTO tidegate.service (service, state, since, failures, retry_at, answered_at, last_error, kinds, max_running, per_second)
VALUES ('bank', 'open', now() - interval '12 min', 7, now() + interval '40 s', now() - interval '13 min', 'http_503', '{refund_requested}', NULL, NULL),
       ('printer', 'closed', now() - interval '3 days', 0, NULL, now() - interval '4 s', NULL, '{invoice_sent}', 10, 2.5),
       ('courier', 'paused', now() - interval '1 h', 0, NULL, now() - interval '1 h', NULL, '{parcel_shipped}', NULL, NULL);
INSERT INTO tidegate.drain_run (worker, started_at, ended_at, stop_reason, report)
SELECT gen_random_uuid(), now() - make_interval(mins => n, secs => 4), now() - make_interval(mins => n), CASE WHEN n % 4 = 0 THEN 'budget_spent' ELSE 'queue_empty' END,
       json_build_object('elapsed_ms', 3100 + n * 57, 'completed', 180 + n * 13, 'completed_with_errors', n % 3, 'failed', n % 2, 'retried', n % 5,
           'cost', json_build_object('database_ms', 700 + n * 11, 'server_wal_bytes', 640000 + n * 9000, 'gb_seconds', 0.8 + n * 0.02))
  FROM generate_series(1, 30) AS n;
INSERT INTO tidegate.schedule (keeper, name, kind, payload, cron, every, time_zone)
VALUES ('warehouse', 'nightly-stock', 'stock_counted', '{"scope": "all"}', '30 2 * * *', NULL, 'Europe/Kyiv'),
       ('warehouse', 'every-quarter', 'newsletter', NULL, NULL, '15 min', 'UTC');
SELECT tidegate.pause_schedule('every-quarter', 'the list is being cleaned', 'grace');

-- What somebody hostile would publish.
INSERT INTO tidegate.event_log (id, kind, payload, group_key, dedup_key, correlation_id, status, attempts, max_attempts, errors, result, created_at, finished_at, expires_at)
VALUES (601, 'hostile <script>window.hacked=1</script>',
        ('{"<img src=x onerror=window.hacked=1>": "</code></pre><script>window.hacked=1</script>", "rtl": "\u202egnp.exe", "emoji": "🧨", "number": 123456789012345678901234567890.10, "long": "' || repeat('x', 1000000) || '"}')::json,
        '"><svg onload=window.hacked=1> / .. ?a=b&c#d', '''><script>window.hacked=1</script>', 'javascript:window.hacked=1', 'FAILED', 1, 5,
        jsonb_build_array(jsonb_build_object('handler', '<b onmouseover=window.hacked=1>h', 'code', '<script>window.hacked=1</script>', 'message', '</td></table><script>window.hacked=1</script> ' || U&'\202E' || 'evil', 'attempt', 1, 'at', now(), 'details', '{"<script>": "window.hacked=1"}'::jsonb)),
        '{"h": "<script>window.hacked=1</script>"}', now() - interval '5 min', now() - interval '4 min', now() + interval '20 days'),
       (602, 'order_placed', '{"tidegate_sealed":{"v":1,"key":"2031","wrapped":"AAAA","data":"BBBB"}}', NULL, NULL, NULL, 'COMPLETED', 1, 5, '[]', NULL, now() - interval '5 min', now() - interval '4 min', now() + interval '20 days');
SELECT tidegate.requeue(ARRAY[(SELECT min(id) FROM tidegate.event_queue)], '<script>window.hacked=1</script> the worker hangs', '<img src=x onerror=window.hacked=1>');
ANALYZE;
