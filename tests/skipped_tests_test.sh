#!/bin/sh
# Holds scripts/skipped_tests.sh to what it must say of a file as ctest writes it.
# usage: skipped_tests_test.sh SOURCE_DIR
set -eu
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cat >"$temporary/tests.xml" <<'EOF'
<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)"
	tests="6"
	>
	<testcase name="A.Skips" classname="A.Skips" time="0.004" status="notrun">
		<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
		<system-out>Note: Google Test filter = A.Skips
[ RUN      ] A.Skips
a_test.cpp:2: Skipped
no &quot;seccomp&quot; &amp; &lt;such&gt;
on this machine

[  SKIPPED ] A.Skips (0 ms)
[  PASSED  ] 0 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] A.Skips
</system-out>
	</testcase>
	<testcase name="A.Runs" classname="A.Runs" time="0.004" status="run">
		<system-out>a_test.cpp:9: Skipped
this line is the test&apos;s own
</system-out>
	</testcase>
	<testcase name="A.Off" classname="A.Off" time="0" status="disabled">
		<system-out>Disabled</system-out>
	</testcase>
	<testcase name="format" classname="format" time="0.001" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
		<system-out>check_format: skipped, clang-format 14 is needed
</system-out>
	</testcase>
	<testcase name="silent" classname="silent" time="0.001" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
		<system-out></system-out>
	</testcase>
</testsuite>
EOF
cat >"$temporary/expected" <<'EOF'
build: 4 of 5 tests skipped
  A.Skips: no "seccomp" & <such> on this machine
  A.Off: disabled
  format: check_format: skipped, clang-format 14 is needed
  silent: no reason given
EOF
"$1/scripts/skipped_tests.sh" build "$temporary/tests.xml" | diff "$temporary/expected" -
sed 's/status="notrun"/status="run"/; s/status="disabled"/status="run"/' "$temporary/tests.xml" >"$temporary/all_ran.xml"
"$1/scripts/skipped_tests.sh" build "$temporary/all_ran.xml" | diff /dev/null -
