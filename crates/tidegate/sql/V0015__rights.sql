-- No login has rights that it was not granted: functions are revoked from PUBLIC. roles.sql, next to this
-- folder's migrations, grants the rights.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM PUBLIC;
