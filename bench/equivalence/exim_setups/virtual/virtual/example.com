info: bob@example.com
team: alice@example.com, bob@example.com, carol@far.example
closed: :fail: nobody reads this
later: :defer: not today
nowhere: :blackhole:
abuse: postmaster@example.com
postmaster: alice@example.com
