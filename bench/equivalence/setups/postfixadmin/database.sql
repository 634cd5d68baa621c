CREATE DATABASE postfix;
USE postfix;
CREATE TABLE domain (domain VARCHAR(255) PRIMARY KEY, active TINYINT(1) NOT NULL DEFAULT 1);
CREATE TABLE mailbox (username VARCHAR(255) PRIMARY KEY, maildir VARCHAR(255) NOT NULL, active TINYINT(1) NOT NULL DEFAULT 1);
CREATE TABLE alias (address VARCHAR(255) PRIMARY KEY, goto TEXT NOT NULL, active TINYINT(1) NOT NULL DEFAULT 1);
CREATE TABLE alias_domain (alias_domain VARCHAR(255) PRIMARY KEY, target_domain VARCHAR(255) NOT NULL,
  active TINYINT(1) NOT NULL DEFAULT 1);
INSERT INTO domain (domain) VALUES ('example.com'), ('example.net'), ('example.org');
INSERT INTO domain VALUES ('gone.example', 0);
INSERT INTO mailbox (username, maildir) VALUES ('alice@example.com', 'example.com/alice/'), ('bob@example.com', 'example.com/bob/'),
  ('closed@example.com', 'example.com/closed/');
INSERT INTO alias (address, goto) VALUES ('alice@example.com', 'alice@example.com'), ('bob@example.com', 'bob@example.com'),
  ('team@example.com', 'alice@example.com,bob@example.com'), ('far@example.com', 'friend@far.example'),
  ('@example.net', 'alice@example.com');
INSERT INTO alias VALUES ('off@example.com', 'alice@example.com', 0);
INSERT INTO alias_domain (alias_domain, target_domain) VALUES ('example.org', 'example.com');
GRANT SELECT ON postfix.* TO 'postfix'@'127.0.0.1' IDENTIFIED BY 'secret';
INSERT INTO alias (address, goto) VALUES ('postmaster@example.com', 'alice@example.com');
