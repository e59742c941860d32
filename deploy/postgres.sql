-- Run once, when the volume of PostgreSQL is empty: a database and a role for the stores, and one of each for Dagster.
\getenv platform_password PLATFORM_DB_PASSWORD
\getenv dagster_password DAGSTER_DB_PASSWORD

CREATE ROLE platform LOGIN PASSWORD :'platform_password';
CREATE DATABASE platform OWNER platform;
REVOKE CONNECT ON DATABASE platform FROM PUBLIC;

CREATE ROLE dagster LOGIN PASSWORD :'dagster_password';
-- Dagster writes UTC into columns without a zone, which PostgreSQL else converts to the time of the session.
ALTER ROLE dagster SET timezone TO 'UTC';
CREATE DATABASE dagster OWNER dagster;
REVOKE CONNECT ON DATABASE dagster FROM PUBLIC;
