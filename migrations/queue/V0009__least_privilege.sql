-- Nobody may do anything that nobody gave them: functions are no longer PUBLIC's. Producers need no
-- right on a table: the publish functions run with their owner's rights, with a search path that no
-- caller can bend. Who may do what is granted by roles.sql, beside this folder.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM PUBLIC;

ALTER FUNCTION tidegate.publish(text, jsonb, text, text, text, timestamptz, timestamptz, integer) SECURITY DEFINER;
ALTER FUNCTION tidegate.publish_rows(text[], jsonb[], text[], text[], text[], timestamptz[], timestamptz[], integer[], bigint[]) SECURITY DEFINER;
ALTER FUNCTION tidegate.publish_many(jsonb) SECURITY DEFINER;
