# What PostgreSQL's own test of pg_dump defines (src/bin/pg_dump/t/002_pg_dump.pl): its runs and its objects, as JSON.
# The file is read up to where it starts a server; what it needs of the test modules until then stands here.
use strict;
use warnings;
use JSON::PP;

package PostgreSQL::Test::Utils;
our $timeout_default = 180;
sub tempdir { return '@FOLDER@' }

package main;
sub check_pg_config { return index($_[0], $ENV{FIRN_WITHOUT} // 'nothing') < 0 }

my ($path) = @ARGV;
open(my $file, '<', $path) or die "$path: $!";
my $text = do { local $/; <$file> };
close($file);
$text =~ s/^#+\n# (?:Create a PG instance|Set up a PG instance).*//ms or die "$path: no place where the server starts";
$text =~ s/^use (?:PostgreSQL::|Test::).*;$//mg;
$text .= <<'END';
my %objects = map { my $t = $tests{$_}; $_ => { map { $_ => "$t->{$_}" } grep { defined $t->{$_} } qw(create_sql create_order database collation icu lz4) } }
    grep { $tests{$_}->{create_sql} } keys %tests;
my %runs = map { my $r = $pgdump_runs{$_}; $_ => { dump => $r->{dump_cmd}, restore => $r->{restore_cmd} } } keys %pgdump_runs;
print JSON::PP->new->canonical->encode({ objects => \%objects, runs => \%runs });
END
$ENV{with_icu} //= 'yes';
eval $text;
die $@ if $@;
