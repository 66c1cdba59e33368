#!/bin/sh
# Creates a CA, a server certificate for the scheduler and a client certificate.
#
#   sh deploy/certs.sh DIR NAME...      NAME: a host name or address of the scheduler
#
# Run it again to renew both certificates: the CA is kept, and running processes reload the files within seconds.
set -eu
dir=$1
shift
mkdir -p "$dir"
cd "$dir"
umask 077
key() { openssl ecparam -name prime256v1 -genkey -noout 2>/dev/null | openssl pkcs8 -topk8 -nocrypt; }

if [ ! -f ca.key ]; then
    key >ca.key
    openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=gantry CA" -out ca.crt
fi
# issue FILE SUBJECT EXTENSIONS
issue() {
    key >"$1.key.new"
    openssl req -new -key "$1.key.new" -subj "/CN=$2" -out "$1.csr"
    printf '%s\n' "basicConstraints=CA:FALSE" "$3" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 -extfile "$1.ext" \
        -out "$1.crt.new" 2>/dev/null
    mv "$1.key.new" "$1.key"
    mv "$1.crt.new" "$1.crt"
    rm "$1.csr" "$1.ext"
}
names=DNS:localhost
for name in "$@"; do
    case $name in
        *[!0-9.:]*) names="$names,DNS:$name" ;;
        *) names="$names,IP:$name" ;;
    esac
done
issue scheduler scheduler "extendedKeyUsage=serverAuth
subjectAltName=$names"
issue client client "extendedKeyUsage=clientAuth"
chmod 644 ca.crt scheduler.crt client.crt
echo "$dir: ca.crt; scheduler.crt and scheduler.key for $names; client.crt and client.key"
