// JDBC: org.postgresql:postgresql.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import org.postgresql.util.PSQLException;

class JdbcPublish {
    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            connection.setAutoCommit(false);
            try (PreparedStatement order = connection.prepareStatement("INSERT INTO orders (id) VALUES (?)")) {
                order.setLong(1, 7);
                order.executeUpdate();
            }
            // setString sends text: the cast makes it JSON.
            publish(connection,
                "SELECT id, created FROM tidegate.publish(?, ?::jsonb, group_key => ?, dedup_key => ?)",
                "order_placed", "{\"order_id\": 7, \"skus\": [\"a-1\", \"b-2\"]}", "customer-3", "order-7");
            publish(connection,
                "SELECT id, created FROM tidegate.publish_many(?::jsonb)",
                "[{\"kind\": \"order_placed\", \"payload\": {\"order_id\": 8, \"skus\": [\"c-3\"]}},"
                    + " {\"kind\": \"order_paid\", \"payload\": {\"order_id\": 8}, \"delay\": 90}]");
            connection.commit();
            try {
                publish(connection, "SELECT id, created FROM tidegate.publish(?, NULL)", "order_plcaed");
            } catch (PSQLException error) {
                connection.rollback();
                if (!error.getSQLState().equals("22023")) throw error;
                System.out.println("refused: " + error.getServerErrorMessage().getMessage());
            }
        }
    }

    static void publish(Connection connection, String sql, String... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) statement.setString(i + 1, values[i]);
            ResultSet events = statement.executeQuery();
            while (events.next()) {
                System.out.println("event " + events.getLong("id") + (events.getBoolean("created") ? " new" : " duplicate"));
            }
        }
    }
}
