-- Nobody may call the application's functions without a grant, like those of the queue; see roles.sql.

SELECT @tidegate.close_functions(s) FROM unnest(ARRAY['forms', 'checks', 'medical', 'callers']) AS s;
