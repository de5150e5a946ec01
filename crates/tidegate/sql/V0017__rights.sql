-- Nobody may do anything that nobody gave them: functions are not PUBLIC's. Who may do what is granted by roles.sql, beside
-- this folder.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM PUBLIC;
