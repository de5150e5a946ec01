<?php
// PHP: PDO with pdo_pgsql. Without a host in the name, libpq's variables PGHOST, PGPORT, PGUSER and PGDATABASE tell where.
$connection = new PDO('pgsql:', options: [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);

function told(PDOStatement $events): void
{
    foreach ($events as $event) {
        echo "event {$event['id']} ", $event['created'] ? 'new' : 'duplicate', "\n";
    }
}

$connection->beginTransaction();
$connection->prepare('INSERT INTO orders (id) VALUES (?)')->execute([7]);
$published = $connection->prepare('SELECT id, created FROM tidegate.publish(?, ?, group_key => ?, dedup_key => ?)');
$published->execute(['order_placed', json_encode(['order_id' => 7, 'skus' => ['a-1', 'b-2']]), 'customer-3', 'order-7']);
told($published);
$batch = $connection->prepare('SELECT id, created FROM tidegate.publish_many(?)');
$batch->execute([json_encode([
    ['kind' => 'order_placed', 'payload' => ['order_id' => 8, 'skus' => ['c-3']]],
    ['kind' => 'order_paid', 'payload' => ['order_id' => 8], 'delay' => 90],
])]);
told($batch);
$connection->commit();

try {
    $connection->prepare('SELECT tidegate.publish(?, NULL)')->execute(['order_plcaed']);
} catch (PDOException $error) {
    if ($error->getCode() !== '22023') {
        throw $error;
    }
    // The first line is Postgres' message.
    echo 'refused: ', preg_replace('/^.*ERROR:\s*/', '', strtok($error->getMessage(), "\n")), "\n";
}
