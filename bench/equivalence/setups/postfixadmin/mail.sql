CREATE TABLE domain (domain TEXT, active INTEGER);
CREATE TABLE mailbox (username TEXT, maildir TEXT, active INTEGER);
CREATE TABLE alias (address TEXT, goto TEXT, active INTEGER);
CREATE TABLE alias_domain (alias_domain TEXT, target_domain TEXT, active INTEGER);
INSERT INTO domain VALUES ('example.com', 1), ('example.net', 1), ('gone.example', 0), ('example.org', 1);
INSERT INTO mailbox VALUES ('alice@example.com', 'example.com/alice/', 1), ('bob@example.com', 'example.com/bob/', 1),
 ('old@example.com', 'example.com/old/', 0);
INSERT INTO alias VALUES ('alice@example.com', 'alice@example.com', 1), ('bob@example.com', 'bob@example.com', 1),
 ('team@example.com', 'alice@example.com,bob@example.com', 1), ('far@example.com', 'friend@far.example', 1),
 ('@example.net', 'alice@example.com', 1), ('off@example.com', 'alice@example.com', 0);
INSERT INTO alias_domain VALUES ('example.org', 'example.com', 1);
