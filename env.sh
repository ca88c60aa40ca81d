ex() { t=$1; shift; rm -rf /var/tmp/bd/xsrc-$t; $B run $t .venv/bin/python /var/tmp/bd/explore.py /var/tmp/bd/xsrc-$t "$@" >/var/tmp/bd/xsteps-$t 2>/var/tmp/bd/xerr-$t; $B stats $t /var/tmp/bd/xsrc-$t/* >/var/tmp/bd/xlines-$t; }
rank() { .venv/bin/python /var/tmp/bd/rank.py $1 /var/tmp/bd/xsteps-$1 /var/tmp/bd/xlines-$1 $2; }
